// The device loop: one call of an executor, without Python.
//
//     for each device iteration
//         for each accumulation step, each replica      replica r on worker r % workers
//             feed -> run the body -> keep its results   Loop::micro_batch
//         add the accumulators of all replicas           Loop::reduce, in replica order
//         run the update                                 on the calling thread
//
// Nothing here includes a header of torch: that would make the compile ten times slower. The few
// functions of its C interface that are called are declared in plan.h.
//
// A call pauses soon after its deadline, between two micro-batches, so that Python can look for
// signals; the next call goes on where it stopped. Every pointer was checked by the Python side.

#include <algorithm>
#include <array>
#include <atomic>
#include <cfenv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "plan.h"
#include "sums.h"
#include "workers.h"

namespace pantile {

// ---- Constants ----------------------------------------------------------------------------------

// How often loops of this process began or ended to write to tensors that others may read.
std::atomic<uint64_t> state_writes{0};

struct WritesState {
  explicit WritesState(bool writes) : step(writes ? 1 : 0) { state_writes += step; }
  ~WritesState() { state_writes += step; }
  const uint64_t step;
};

// What the constants of a run were, as far as their owners tell.
struct Constants {
  uint64_t version = 0, writes = 0;
  bool operator==(const Constants& other) const {
    return version == other.version && writes == other.writes;
  }
};

// ---- Random seeds -------------------------------------------------------------------------------

// The finaliser of splitmix64: a bijection in which every input bit moves every output bit.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t absorb(uint64_t state, uint64_t value) {
  return mixed(state + (value + 1) * 0x9e3779b97f4a7c15ull);
}

void fill_seeds(int64_t* seeds, int64_t count, uint64_t base, uint64_t replica, uint64_t counter) {
  const uint64_t stream = absorb(absorb(mixed(base), replica), counter);
  for (int64_t i = 0; i < count; ++i)
    seeds[i] = static_cast<int64_t>(absorb(stream, i) & 0x7fffffffffffffffull);
}

// ---- Tensors ------------------------------------------------------------------------------------

void check(int32_t status, const char* what) {
  if (status != 0) throw std::runtime_error(std::string("torch could not ") + what);
}

std::string shape_text(int64_t dims, const int64_t* sizes) {
  std::string text = "[";
  for (int64_t i = 0; i < dims; ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

// What a part or a result looks like.
struct View {
  explicit View(const ViewPlan& plan)
      : sizes(plan.sizes, plan.sizes + plan.dims), strides(plan.strides, plan.strides + plan.dims),
        bytes(plan.bytes), dtype(plan.dtype), by_torch(plan.by_torch != 0) {}

  Handle over(char* data) const {
    static const int32_t cpu = aoti_torch_device_type_cpu();
    Handle made = nullptr;
    check(aoti_torch_create_tensor_from_blob(data, static_cast<int64_t>(sizes.size()), sizes.data(),
                                             strides.data(), 0, dtype, cpu, 0, &made),
          "make a tensor over a buffer");
    return made;
  }

  void check_same(Handle tensor, size_t output) const {
    const std::string name = "output " + std::to_string(output);
    if (tensor == nullptr) throw std::runtime_error(name + " is missing");
    int64_t dims = 0, *found = nullptr;
    int32_t type = -1;
    check(aoti_torch_get_dim(tensor, &dims), "read the rank of an output");
    check(aoti_torch_get_sizes(tensor, &found), "read the shape of an output");
    check(aoti_torch_get_dtype(tensor, &type), "read the type of an output");
    if (dims != static_cast<int64_t>(sizes.size()) ||
        !std::equal(sizes.begin(), sizes.end(), found))
      throw std::runtime_error(name + " has the shape " + shape_text(dims, found) +
                               "; the plan has " + shape_text(sizes.size(), sizes.data()));
    if (type != dtype)
      throw std::runtime_error(name + " has the type number " + std::to_string(type) +
                               "; the plan has " + std::to_string(dtype));
  }

  void copy(Handle tensor, char* target) const {
    if (bytes == 0) return;
    bool contiguous = false;
    check(aoti_torch_is_contiguous(tensor, &contiguous), "read the strides of an output");
    if (contiguous && !by_torch) {
      void* data = nullptr;
      check(aoti_torch_get_data_ptr(tensor, &data), "read the data of an output");
      std::memcpy(target, data, bytes);
      return;
    }
    const Handle handle = over(target);
    const int32_t status = aoti_torch_copy_(handle, tensor, 0);
    aoti_torch_delete_tensor_object(handle);
    check(status, "copy an output");
  }

  std::vector<int64_t> sizes, strides;
  int64_t bytes;
  int32_t dtype;
  bool by_torch;
};

// ---- Programs -----------------------------------------------------------------------------------

// A program with the buffers and inputs of one replica.
class Instance {
 public:
  Instance(const ProgramEntry& entry, int64_t inputs, int64_t outputs)
      : entry_(entry), context_(entry.create()), handles(inputs), outputs(outputs) {
    if (context_ == nullptr) throw std::runtime_error("the program could not be set up");
  }
  ~Instance() {
    for (Handle handle : handles)
      if (handle != nullptr) aoti_torch_delete_tensor_object(handle);
    entry_.destroy(context_);
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  // In the next run, constants are those of the run before.
  void keep(bool is_sure) {
    if (entry_.keep != nullptr) entry_.keep(context_, is_sure);
  }

  int64_t setups() const { return entry_.setups == nullptr ? 0 : entry_.setups(context_); }

  void run() {
    if (entry_.run(context_, handles.data(), outputs.data()) == 0) return;
    const char* text = entry_.error(context_);
    throw std::runtime_error(text && *text ? text : "the program failed and gave no reason");
  }

 private:
  const ProgramEntry entry_;
  void* const context_;

 public:
  std::vector<Handle> handles, outputs;
};

struct Replica : Instance {
  struct Feed {
    size_t position, argument;
    char* data;
  };
  struct Buffer {
    char* data;
    int64_t bytes;
  };

  Replica(const LoopPlan& plan, const InputPlan* inputs)
      : Instance(plan.body, plan.inputs, plan.outputs) {
    for (int64_t i = 0; i < plan.inputs; ++i) {
      const InputPlan& input = inputs[i];
      switch (input.kind) {
        case STATE: break;
        case ARGUMENT: feeds.push_back({size_t(i), size_t(input.argument), nullptr}); break;
        case ACCUMULATOR: accumulators.push_back({input.data, input.bytes}); break;
        case SEEDS: seeds.push_back({input.data, input.bytes}); break;
        case OLD_WEIGHT: old_weights.push_back(reinterpret_cast<double*>(input.data)); break;
        case NEW_WEIGHT: new_weights.push_back(reinterpret_cast<double*>(input.data)); break;
        default: throw std::runtime_error("unknown kind of input");
      }
    }
  }

  std::vector<Feed> feeds;
  std::vector<Buffer> accumulators, seeds;
  std::vector<double*> old_weights, new_weights;
  Constants constants;    // of the last run
  int64_t last_call = 0;  // of `Loop::run`
};

// ---- The loop -----------------------------------------------------------------------------------

class Loop {
 public:
  explicit Loop(const LoopPlan& plan)
      : plan_(plan), workers_(std::max<int64_t>(1, std::min(plan.workers, plan.replicas))),
        parts_(plan.parts, plan.parts + plan.micro_batches),
        slots_(plan.slots, plan.slots + plan.micro_batches),
        wanted_(plan.wanted, plan.wanted + plan.micro_batches / plan.replicas),
        sums_(plan.sum, plan.sum + plan.sums), cursors_(workers_),
        arguments_(plan.argument, plan.argument + plan.arguments),
        results_(plan.result, plan.result + plan.results) {
    for (SumPlan& sum : sums_) {
      sources_.emplace_back(sum.sources, sum.sources + sum.count);
      sum_bytes_ += sum.elements * sum.count * 4;
    }
    for (size_t i = 0; i < sums_.size(); ++i) sums_[i].sources = sources_[i].data();
    if (plan.update.run != nullptr)
      update_.reset(new Instance(plan.update, plan.update_inputs, plan.update_outputs));
    for (int64_t r = 0; r < plan.replicas; ++r)
      replicas_.emplace_back(new Replica(plan, plan.input + r * plan.inputs));
    adopt_handles(plan);
  }

  // Runs on from iteration `next`, fresh or where the last call paused. Returns the first iteration
  // that is not complete, `end` if all are; -1 after a failure.
  int64_t run(int64_t next, int64_t end, bool fresh, Failure& failure) {
    failure_ = &failure;
    failed_.store(false);
    if (fresh) in_chunk_ = false;
    ++calls_;
    const WritesState writes(plan_.writes != 0);
    const Settings settings(plan_.threads);
    if (workers_ > 1) std::fegetenv(&float_settings_);
    try {
      BorrowedPool pool(workers_ - 1);
      deadline_ = now() + plan_.deadline;
      while (next < end) {
        if (!in_chunk_) begin_chunk(next, end);
        const double begin = now();
        pool.run([](void* loop, int64_t worker) { static_cast<Loop*>(loop)->compute(worker); },
                 this);
        if (failed_.load()) break;
        if (!chunk_is_complete()) return next;
        reduce(pool);
        update();
        if (failed_.load()) break;
        in_chunk_ = false;
        next = chunk_end_;
        const double end_time = now();
        adapt_chunk(end_time - begin);
        if (end_time >= deadline_) return next;
      }
    } catch (const std::exception& error) {
      fail(next, -1, -1, error.what());
    }
    if (!failed_.load()) return next;
    in_chunk_ = false;
    return -1;
  }

  int64_t setups() const {
    int64_t sum = 0;
    for (const auto& replica : replicas_) sum += replica->setups();
    return sum;
  }

 private:
  struct alignas(64) Cursor {
    int64_t iteration, step, replica;
  };

  // Last of all: while something can fail, whoever made the handles owns them.
  void adopt_handles(const LoopPlan& plan) {
    for (int64_t i = 0; i < plan.replicas * plan.inputs; ++i)
      replicas_[i / plan.inputs]->handles[i % plan.inputs] = plan.input[i].handle;
    for (int64_t i = 0; update_ && i < plan.update_inputs; ++i)
      update_->handles[i] = plan.update_input[i];
  }

  // Replicas meet only to add their gradients. Without that they need not wait for each other
  // after every iteration, and a chunk is as many iterations as take a few milliseconds.
  void begin_chunk(int64_t next, int64_t end) {
    const bool alone = workers_ > 1 && sums_.empty() && !update_;
    chunk_end_ = std::min(end, next + (alone ? chunk_ : 1));
    for (int64_t w = 0; w < workers_; ++w) cursors_[w] = {next, 0, w};
    in_chunk_ = true;
  }

  void adapt_chunk(double seconds) {
    if (seconds < 0.005) chunk_ = std::min<int64_t>(chunk_ * 2, 1 << 20);
    if (seconds > 0.02) chunk_ = std::max<int64_t>(chunk_ / 2, 1);
  }

  bool chunk_is_complete() const {
    return std::all_of(cursors_.begin(), cursors_.end(),
                       [this](const Cursor& c) { return c.iteration == chunk_end_; });
  }

  void compute(int64_t worker) {
    if (worker == 0) return compute_share(worker);
    const Settings settings(plan_.threads);
    std::fesetenv(&float_settings_);  // flushing of denormals changes bits: do as the caller does
    compute_share(worker);
  }

  void compute_share(int64_t worker) {
    Cursor& cursor = cursors_[worker];
    while (cursor.iteration < chunk_end_ && !failed_.load(std::memory_order_relaxed)) {
      double time = 0;
      try {
        time = micro_batch(cursor.iteration, cursor.step, cursor.replica);
      } catch (const std::exception& error) {
        return fail(cursor.iteration, cursor.step, cursor.replica, error.what());
      } catch (...) {
        return fail(cursor.iteration, cursor.step, cursor.replica, "the program threw");
      }
      cursor.replica += workers_;
      if (cursor.replica >= plan_.replicas) {
        cursor.replica = worker;
        if (++cursor.step == plan_.accumulation) cursor.step = 0, ++cursor.iteration;
      }
      if (time >= deadline_) return;
    }
  }

  double micro_batch(int64_t iteration, int64_t step, int64_t r) {
    const int64_t turn = iteration * plan_.accumulation + step;
    const int64_t index = turn * plan_.replicas + r;
    Replica& replica = *replicas_[r];
    double* times = plan_.times + 4 * index;
    times[0] = now();
    feed(replica, r, step, parts_[index]);
    times[1] = now();
    vouch(replica);
    replica.run();
    times[2] = now();
    if (wanted_[turn]) keep(replica, slots_[index]);
    return times[3] = now();
  }

  void feed(Replica& replica, int64_t r, int64_t step, int64_t part) {
    for (Replica::Feed& feed : replica.feeds) {
      const View& view = arguments_[feed.argument];
      char* data = plan_.argument_data[feed.argument] + part * view.bytes;
      Handle& handle = replica.handles[feed.position];
      if (handle != nullptr && data == feed.data) continue;
      const Handle made = view.over(data);
      if (handle != nullptr) aoti_torch_delete_tensor_object(handle);
      handle = made;
      feed.data = data;
    }
    if (step == 0)
      for (const Replica::Buffer& buffer : replica.accumulators)
        std::memset(buffer.data, 0, buffer.bytes);
    if (!replica.seeds.empty()) {
      for (const Replica::Buffer& buffer : replica.seeds)
        fill_seeds(reinterpret_cast<int64_t*>(buffer.data), buffer.bytes / 8, *plan_.seed,
                   plan_.first_replica + r, plan_.counters[r]);
      ++plan_.counters[r];
    }
    const double count = static_cast<double>(step + 1);
    for (double* weight : replica.old_weights) *weight = (count - 1) / count;
    for (double* weight : replica.new_weights) *weight = 1 / count;
  }

  // Says whether the constants are as they were. Between two runs of one call Python cannot have
  // changed them; else the program looks, too.
  void vouch(Replica& replica) {
    const Constants found{*plan_.constants, state_writes.load()};
    if (found.version != 0 && found == replica.constants) replica.keep(replica.last_call == calls_);
    replica.constants = found;
    replica.last_call = calls_;
  }

  void keep(Replica& replica, int64_t slot) {
    for (size_t i = 0; i < results_.size(); ++i)
      results_[i].check_same(replica.outputs[i], i);
    for (size_t i = 0; i < results_.size(); ++i)
      results_[i].copy(replica.outputs[i], plan_.result_data[i] + slot * results_[i].bytes);
  }

  void reduce(BorrowedPool& pool) {
    if (sums_.empty()) return;
    if (sum_bytes_ < 1 << 16) {  // done before a helper would be awake
      for (const SumPlan& sum : sums_) sum_share(sum, 0, 1);
      return;
    }
    pool.run([](void* loop, int64_t worker) { static_cast<Loop*>(loop)->reduce_share(worker); },
             this);
  }

  void reduce_share(int64_t worker) {
    if (worker != 0) std::fesetenv(&float_settings_);
    for (const SumPlan& sum : sums_) sum_share(sum, worker, workers_);
  }

  void update() {
    if (!update_) return;
    const Settings settings(plan_.update_threads);
    try {
      update_->run();
    } catch (const std::exception& error) {
      fail(chunk_end_ - 1, -1, 0, error.what());
    } catch (...) {
      fail(chunk_end_ - 1, -1, 0, "the update threw");
    }
  }

  // Of failures of several replicas, the one a single thread would have met first is told.
  void fail(int64_t iteration, int64_t step, int64_t replica, const char* message) {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    Failure& f = *failure_;
    const std::array<int64_t, 3> place = {iteration, step, replica};
    if (failed_.load() && place > std::array<int64_t, 3>{f.iteration, f.step, f.replica}) return;
    f.iteration = iteration, f.step = step, f.replica = replica;
    std::snprintf(f.message, sizeof f.message, "%s", message);
    failed_.store(true);
  }

  const LoopPlan plan_;
  const int64_t workers_;
  const std::vector<int64_t> parts_, slots_;
  const std::vector<uint8_t> wanted_;
  std::vector<SumPlan> sums_;
  std::vector<Cursor> cursors_;
  const std::vector<View> arguments_, results_;
  std::vector<std::vector<const char*>> sources_;
  std::unique_ptr<Instance> update_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  int64_t sum_bytes_ = 0, chunk_ = 1, chunk_end_ = 0, calls_ = 0;
  bool in_chunk_ = false;
  double deadline_ = 0;
  std::fenv_t float_settings_;
  std::mutex failure_mutex_;
  Failure* failure_ = nullptr;
  std::atomic<bool> failed_{false};
};

}  // namespace pantile

// ---- What Python calls --------------------------------------------------------------------------

#define EXPORTED __attribute__((visibility("default")))

using pantile::Loop;

extern "C" {

// The handles of the plan belong to the loop, unless it could not be made.
EXPORTED Loop* pantile_loop_create(const LoopPlan* plan, Failure* failure) {
  try {
    return new Loop(*plan);
  } catch (const std::exception& error) {
    failure->iteration = failure->step = failure->replica = -1;
    std::snprintf(failure->message, sizeof failure->message, "%s", error.what());
    return nullptr;
  }
}

EXPORTED void pantile_loop_destroy(Loop* loop) { delete loop; }

EXPORTED int64_t pantile_loop_run(Loop* loop, int64_t next, int64_t end, int32_t fresh,
                                  Failure* failure) {
  return loop->run(next, end, fresh != 0, *failure);
}

EXPORTED int64_t pantile_loop_setups(const Loop* loop) { return loop->setups(); }

EXPORTED int32_t pantile_loop_dtype(Handle tensor) {
  int32_t dtype = -1;
  return aoti_torch_get_dtype(tensor, &dtype) == 0 ? dtype : -1;
}

EXPORTED void pantile_loop_release(Handle tensor) { aoti_torch_delete_tensor_object(tensor); }
}
