// The threads that run replicas, and the settings a thread needs to run a program.

#pragma once

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "plan.h"

namespace pantile {

inline double now() {  // what time.perf_counter() reads
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class Function>
Function symbol(const char* name) {
  if (void* found = dlsym(RTLD_DEFAULT, name)) return reinterpret_cast<Function>(found);
  static void* torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  return reinterpret_cast<Function>(torch ? dlsym(torch, name) : nullptr);
}

struct ThreadCounts {
  int (*get)() = symbol<int (*)()>("omp_get_max_threads");
  void (*set)(int) = symbol<void (*)(int)>("omp_set_num_threads");
  // MKL has a count of its own, which wins over OpenMP's.
  int (*set_mkl)(int) = symbol<int (*)(int)>("MKL_Set_Num_Threads_Local");
  // On its first parallel region in a thread, torch sets OpenMP's count. at::get_num_threads()
  // makes it do so before we set ours.
  int (*settle)() = symbol<int (*)()>("_ZN2at15get_num_threadsEv");
};

inline const ThreadCounts& thread_counts() {
  static const ThreadCounts counts;
  return counts;
}

// The thread-local settings of a thread that runs programs, put back at the end.
class Settings {
 public:
  explicit Settings(int64_t threads) : grad_(aoti_torch_grad_mode_is_enabled()) {
    const ThreadCounts& counts = thread_counts();
    aoti_torch_grad_mode_set_enabled(false);
    if (counts.settle) counts.settle();
    if (counts.get) threads_ = counts.get();
    if (counts.set && threads > 0) counts.set(static_cast<int>(threads));
    if (counts.set_mkl && threads > 0) mkl_ = counts.set_mkl(static_cast<int>(threads));
    changed_ = threads > 0;
  }
  ~Settings() {
    const ThreadCounts& counts = thread_counts();
    if (changed_ && counts.set && threads_ > 0) counts.set(threads_);
    if (changed_ && counts.set_mkl) counts.set_mkl(mkl_);
    aoti_torch_grad_mode_set_enabled(grad_);
  }
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

 private:
  bool grad_, changed_ = false;
  int threads_ = 0, mkl_ = 0;
};

inline int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A waiter looks for a few microseconds, then sleeps: a step is often over by then, and on a loaded
// host the core is worth more to whoever computes.
template <class Condition>
bool seen_while_spinning(double seconds, Condition condition) {
  const double end = seconds > 0 ? now() + seconds : 0;
  do {
    for (int i = 0; i < 16; ++i) {
      if (condition()) return true;
      if (seconds <= 0) return false;
      pause_core();
    }
  } while (now() < end);
  return condition();
}

// `helpers` threads that, together with the calling one, run a job each.
class Pool {
 public:
  using Job = void (*)(void* context, int64_t worker);

  explicit Pool(int64_t helpers) : helpers_(helpers) {
    spin_ = usable_cores() > helpers ? 1e-5 : 0;
    sigset_t all, before;
    sigfillset(&all);  // signals are for Python's threads
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (int64_t i = 0; i < helpers; ++i) {
        threads_.emplace_back([this, i] { work(i + 1); });
        pthread_setname_np(threads_.back().native_handle(), "pantile-replica");
      }
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      quit();
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  int64_t helpers() const { return helpers_; }

  void run(Job job, void* context) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = job;
      context_ = context;
      pending_.store(helpers_, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
    }
    begun_.notify_all();
    job(context, 0);
    const auto finished = [this] { return pending_.load(std::memory_order_acquire) == 0; };
    if (seen_while_spinning(spin_, finished)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, finished);
  }

 private:
  void work(int64_t worker) {
    uint64_t done = 0;
    for (;;) {
      const auto begun = [&] { return round_.load(std::memory_order_acquire) != done; };
      if (!seen_while_spinning(spin_, begun)) {
        std::unique_lock<std::mutex> lock(mutex_);
        begun_.wait(lock, begun);
      }
      ++done;
      if (job_ == nullptr) return;
      job_(context_, worker);
      if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::lock_guard<std::mutex> lock(mutex_);  // else the caller may miss it and sleep
        finished_.notify_one();
      }
    }
  }

  void quit() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = nullptr;
      round_.fetch_add(1, std::memory_order_release);
    }
    begun_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const int64_t helpers_;
  double spin_ = 0;
  std::mutex mutex_;
  std::condition_variable begun_, finished_;
  std::atomic<uint64_t> round_{0};
  alignas(64) std::atomic<int64_t> pending_{0};
  Job job_ = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> threads_;
};

// Pools that nobody uses now. They live until the process ends, asleep: one per number of helpers
// and concurrent caller, however many loops there are. A forked child has none of the threads of
// its parent, so it starts with an empty list.
struct IdlePools {
  const pid_t owner = getpid();
  std::mutex mutex;
  std::vector<Pool*> pools;
};

inline IdlePools& idle_pools() {
  static std::atomic<IdlePools*> current{nullptr};
  IdlePools* found = current.load();
  if (found != nullptr && found->owner == getpid()) return *found;
  IdlePools* made = new IdlePools;
  if (current.compare_exchange_strong(found, made)) return *made;
  delete made;
  return *found;
}

class BorrowedPool {
 public:
  explicit BorrowedPool(int64_t helpers) {
    if (helpers == 0) return;
    idle_ = &idle_pools();
    {
      std::lock_guard<std::mutex> lock(idle_->mutex);
      for (Pool*& pool : idle_->pools) {
        if (pool->helpers() != helpers) continue;
        pool_ = pool;
        pool = idle_->pools.back();
        idle_->pools.pop_back();
        return;
      }
    }
    pool_ = new Pool(helpers);
  }
  ~BorrowedPool() {
    if (pool_ == nullptr) return;
    std::lock_guard<std::mutex> lock(idle_->mutex);
    idle_->pools.push_back(pool_);
  }
  BorrowedPool(const BorrowedPool&) = delete;
  BorrowedPool& operator=(const BorrowedPool&) = delete;

  void run(Pool::Job job, void* context) {
    if (pool_ == nullptr) {
      job(context, 0);
    } else {
      pool_->run(job, context);
    }
  }

 private:
  IdlePools* idle_ = nullptr;
  Pool* pool_ = nullptr;
};

}  // namespace pantile
