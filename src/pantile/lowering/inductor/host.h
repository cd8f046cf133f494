// What a generated host program needs, and nothing more.
//
// Inductor writes the host program of a graph as straight C++ on torch's C interface: allocate a
// buffer, call a kernel, call an ATen function, free the buffer. Its own headers give these words a
// meaning too, but take eight seconds to compile; these take one.
//
// The meaning here also differs: the first run of a context records when each buffer lives, then all
// buffers get a fixed place in one arena, and later runs allocate nothing.
//
//     run 1      buf0 ████████          recorded: birth, death, size of each buffer
//                buf1      █████████
//     plan       arena [buf0 | buf1]    [buf2 reuses buf0's place]
//     run 2 …    the same handles, the same memory

#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/c/shim_cpu.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#define AOTI_NOINLINE __attribute__((noinline))
#define AOTI_TORCH_ERROR_CODE_CHECK(call) \
  if ((call) != AOTI_TORCH_SUCCESS) {     \
    pantile::fail(#call);                 \
  }
#define CACHE_TORCH_DTYPE(name) static auto cached_torch_dtype_##name = aoti_torch_dtype_##name()
#define CACHE_TORCH_DEVICE(name) \
  static auto cached_torch_device_type_##name = aoti_torch_device_type_##name()
#define CACHE_TORCH_LAYOUT(name) static auto cached_torch_layout_##name = aoti_torch_layout_##name()
#define CACHE_TORCH_MEMORY_FORMAT(name) \
  static auto cached_torch_memory_format_##name = aoti_torch_memory_format_##name()

extern "C" const char* torch_exception_get_what_without_backtrace();

namespace pantile {

// A function of the C interface failed: its name, and what torch says about it.
[[noreturn]] AOTI_NOINLINE inline void fail(const char* call) {
  std::string text(call);
  const char* why = torch_exception_get_what_without_backtrace();
  throw std::runtime_error(text.substr(0, text.find('(')) + ": " + (why == nullptr ? "" : why));
}

// A handle that belongs to the context carries a mark in its lowest bit, so that whoever owns
// handles knows not to delete it.
inline AtenTensorHandle marked(AtenTensorHandle handle) {
  return reinterpret_cast<AtenTensorHandle>(reinterpret_cast<uintptr_t>(handle) | 1);
}
inline bool is_marked(AtenTensorHandle handle) {
  return (reinterpret_cast<uintptr_t>(handle) & 1) != 0;
}
inline AtenTensorHandle plain(AtenTensorHandle handle) {
  return reinterpret_cast<AtenTensorHandle>(reinterpret_cast<uintptr_t>(handle) & ~uintptr_t{1});
}

constexpr size_t kAlign = 64;
constexpr size_t kHugePage = size_t{2} << 20;

inline size_t rounded(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// One call of empty_strided in the host program.
struct Buffer {
  std::vector<int64_t> sizes, strides;
  int32_t dtype = 0;
  size_t bytes = 0;
  size_t offset = 0;
  int64_t birth = 0;
  int64_t death = -1;
  int references = 0;
  char* begin = nullptr;
  AtenTensorHandle handle = nullptr;
};

// One call of reinterpret_tensor or new_tensor_handle.
struct View {
  void* base = nullptr;
  AtenTensorHandle handle = nullptr;
};

using Callback = int (*)(int64_t, int64_t, int64_t*, int64_t, AtenTensorHandle*);

// The buffers of one replica.
struct Context {
  std::vector<Buffer> buffers;
  std::vector<View> views;
  size_t next_buffer = 0;
  size_t next_view = 0;
  bool recorded = false;
  bool planned = false;
  int64_t clock = 0;
  char* arena = nullptr;
  size_t arena_bytes = 0;
  std::unordered_map<AtenTensorHandle, size_t> buffer_of;
  std::vector<AtenTensorHandle> outputs;
  std::string error;
};

// Of this object alone: not `inline`, which would be one variable for all loaded programs.
static thread_local Context* current = nullptr;
static Callback callback = nullptr;

inline void* data_of(AtenTensorHandle handle) {
  void* result = nullptr;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, &result));
  return result;
}

// Recording: does a new handle lie in a buffer that is alive? Then the buffer lives as long.
AOTI_NOINLINE inline void note_birth(AtenTensorHandle handle) {
  Context& context = *current;
  bool defined = false;
  if (aoti_torch_is_defined(handle, &defined) != AOTI_TORCH_SUCCESS || !defined) return;
  char* data = static_cast<char*>(data_of(handle));
  if (data == nullptr || context.buffer_of.count(handle) != 0) return;
  for (size_t i = context.buffers.size(); i-- > 0;) {
    Buffer& buffer = context.buffers[i];
    if (buffer.references > 0 && data >= buffer.begin && data < buffer.begin + buffer.bytes) {
      buffer.references++;
      context.buffer_of[handle] = i;
      return;
    }
  }
}

AOTI_NOINLINE inline void note_death(AtenTensorHandle handle) {
  Context& context = *current;
  auto found = context.buffer_of.find(handle);
  if (found == context.buffer_of.end()) return;
  Buffer& buffer = context.buffers[found->second];
  context.buffer_of.erase(found);
  if (--buffer.references == 0) buffer.death = context.clock++;
}

inline void delete_handle(AtenTensorHandle handle) {
  if (handle == nullptr || is_marked(handle)) return;
  if (current != nullptr && !current->planned) note_death(handle);
  aoti_torch_delete_tensor_object(handle);
}

AOTI_NOINLINE inline void record_buffer(
    int64_t dims, const int64_t* sizes, const int64_t* strides, int32_t dtype,
    AtenTensorHandle handle) {
  Context& context = *current;
  Buffer buffer;
  buffer.sizes.assign(sizes, sizes + dims);
  buffer.strides.assign(strides, strides + dims);
  buffer.dtype = dtype;
  int64_t storage = 0;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(handle, &storage));
  buffer.bytes = static_cast<size_t>(storage);
  buffer.begin = static_cast<char*>(data_of(handle));
  buffer.birth = context.clock++;
  buffer.references = 1;
  context.buffer_of[handle] = context.buffers.size();
  context.buffers.push_back(std::move(buffer));
}

inline AOTITorchError empty_strided(
    int64_t dims, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device,
    int32_t device_index, AtenTensorHandle* result) {
  Context& context = *current;
  if (context.planned) {
    *result = context.buffers[context.next_buffer++].handle;
    return AOTI_TORCH_SUCCESS;
  }
  AOTITorchError error =
      aoti_torch_empty_strided(dims, sizes, strides, dtype, device, device_index, result);
  if (error == AOTI_TORCH_SUCCESS) record_buffer(dims, sizes, strides, dtype, *result);
  return error;
}

// A view is made once, and again only when what it looks at has moved.
template <typename Make>
inline AtenTensorHandle view_of(AtenTensorHandle base, Make make) {
  Context& context = *current;
  if (!context.planned) {
    AtenTensorHandle result = make();
    note_birth(result);
    context.next_view++;
    return result;
  }
  View& view = context.views[context.next_view++];
  void* data = data_of(base);
  if (view.handle == nullptr || view.base != data) {
    if (view.handle != nullptr) aoti_torch_delete_tensor_object(view.handle);
    view.handle = make();
    view.base = data;
  }
  return marked(view.handle);
}

// First-fit: the longest-lived large buffers first, each at the lowest place that is free while it
// lives.
inline size_t place_buffers(std::vector<Buffer>& buffers) {
  std::vector<Buffer*> order;
  for (Buffer& buffer : buffers) order.push_back(&buffer);
  std::stable_sort(order.begin(), order.end(), [](Buffer* a, Buffer* b) {
    return a->bytes > b->bytes;
  });
  std::vector<Buffer*> placed;  // by offset
  size_t total = 0;
  for (Buffer* buffer : order) {
    size_t offset = 0;
    size_t size = rounded(std::max(buffer->bytes, size_t{1}), kAlign);
    for (Buffer* other : placed) {
      bool apart = buffer->death < other->birth || other->death < buffer->birth;
      if (apart) continue;
      if (offset + size <= other->offset) break;
      offset = std::max(offset, other->offset + rounded(std::max(other->bytes, size_t{1}), kAlign));
    }
    buffer->offset = offset;
    total = std::max(total, offset + size);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), buffer,
                         [](Buffer* a, Buffer* b) { return a->offset < b->offset; }),
        buffer);
  }
  return total;
}

inline void plan(Context& context) {
  for (Buffer& buffer : context.buffers) {
    if (buffer.references > 0) buffer.death = std::numeric_limits<int64_t>::max();
  }
  context.arena_bytes = rounded(place_buffers(context.buffers), kHugePage);
  if (context.arena_bytes > 0) {
    void* memory = mmap(nullptr, context.arena_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    context.arena = static_cast<char*>(memory);
    madvise(memory, context.arena_bytes, MADV_HUGEPAGE);
  }
  for (Buffer& buffer : context.buffers) {
    AtenTensorHandle handle = nullptr;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob_v2(
        context.arena + buffer.offset, static_cast<int64_t>(buffer.sizes.size()),
        buffer.sizes.data(), buffer.strides.data(), 0, buffer.dtype, aoti_torch_device_type_cpu(),
        0, &handle, aoti_torch_layout_strided(), nullptr, 0));
    buffer.handle = marked(handle);
  }
  context.views.resize(context.next_view);
  context.buffer_of.clear();
  context.planned = true;
}

// What was recorded until a run failed is worth nothing.
inline void forget_recording(Context& context) {
  context.buffers.clear();
  context.buffer_of.clear();
  context.clock = 0;
}

// One tensor can be several outputs.
inline void release_outputs(Context& context) {
  std::vector<AtenTensorHandle>& outputs = context.outputs;
  std::sort(outputs.begin(), outputs.end());
  outputs.erase(std::unique(outputs.begin(), outputs.end()), outputs.end());
  for (AtenTensorHandle handle : outputs) {
    if (handle != nullptr && !is_marked(handle)) aoti_torch_delete_tensor_object(handle);
  }
  outputs.clear();
}

inline AOTITorchError call_function(
    void*, int64_t index, int64_t int_count, int64_t* ints, int64_t tensor_count,
    AtenTensorHandle* tensors) {
  for (int64_t i = 0; i < tensor_count; i++) tensors[i] = plain(tensors[i]);
  if (callback == nullptr || callback(index, int_count, ints, tensor_count, tensors) != 0) {
    throw std::runtime_error("a call through Python");
  }
  if (!current->planned) {
    for (int64_t i = 0; i < tensor_count; i++) note_birth(tensors[i]);
  }
  return AOTI_TORCH_SUCCESS;
}

}  // namespace pantile

class RAIIAtenTensorHandle {
 public:
  RAIIAtenTensorHandle() = default;
  RAIIAtenTensorHandle(const RAIIAtenTensorHandle&) = delete;
  RAIIAtenTensorHandle& operator=(const RAIIAtenTensorHandle&) = delete;
  RAIIAtenTensorHandle(RAIIAtenTensorHandle&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)) {}
  RAIIAtenTensorHandle& operator=(RAIIAtenTensorHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  RAIIAtenTensorHandle(AtenTensorHandle handle) : handle_(handle) {
    if (handle != nullptr && !pantile::current->planned && !pantile::is_marked(handle)) {
      pantile::note_birth(handle);
    }
  }
  ~RAIIAtenTensorHandle() { pantile::delete_handle(handle_); }

  operator AtenTensorHandle() const { return get(); }
  AtenTensorHandle get() const { return pantile::plain(handle_); }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }
  void reset() { pantile::delete_handle(std::exchange(handle_, nullptr)); }
  void* data_ptr() const { return pantile::data_of(get()); }
  int64_t size(int64_t dim) const {
    int64_t result = 0;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_size(get(), dim, &result));
    return result;
  }
  int64_t stride(int64_t dim) const {
    int64_t result = 0;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_stride(get(), dim, &result));
    return result;
  }
  int64_t* sizes() const {
    int64_t* result = nullptr;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(get(), &result));
    return result;
  }
  int64_t* strides() const {
    int64_t* result = nullptr;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(get(), &result));
    return result;
  }

 private:
  AtenTensorHandle handle_ = nullptr;
};

using ConstantHandle = RAIIAtenTensorHandle;

inline RAIIAtenTensorHandle wrap_with_raii_handle_if_needed(AtenTensorHandle handle) {
  return RAIIAtenTensorHandle(handle);
}

inline AtenTensorHandle unwrap_raii_handle_if_needed(const RAIIAtenTensorHandle& handle) {
  return handle.get();
}

inline AtenTensorHandle reinterpret_tensor_wrapper(
    AtenTensorHandle self, int64_t dims, const int64_t* sizes, const int64_t* strides,
    int64_t offset) {
  return pantile::view_of(self, [&] {
    AtenTensorHandle result = nullptr;
    AOTI_TORCH_ERROR_CODE_CHECK(
        aoti_torch__reinterpret_tensor(self, dims, sizes, strides, offset, &result));
    return result;
  });
}

template <typename T>
inline T& temporary_reference(T&& value) {
  return value;
}

inline void* get_data_ptr_wrapper(AtenTensorHandle tensor) {
  return pantile::data_of(tensor);
}

inline AOTITorchError pantile_new_tensor_handle(AtenTensorHandle self, AtenTensorHandle* result) {
  *result = pantile::view_of(self, [&] {
    AtenTensorHandle copy = nullptr;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(self, &copy));
    return copy;
  });
  return AOTI_TORCH_SUCCESS;
}

#define PANTILE_SCALAR_TO_TENSOR(type, name)                                       \
  inline RAIIAtenTensorHandle scalar_to_tensor_handle(type value) {                \
    AtenTensorHandle result = nullptr;                                             \
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_scalar_to_tensor_##name(value, &result)); \
    return RAIIAtenTensorHandle(result);                                           \
  }
PANTILE_SCALAR_TO_TENSOR(float, float32)
PANTILE_SCALAR_TO_TENSOR(double, float64)
PANTILE_SCALAR_TO_TENSOR(uint8_t, uint8)
PANTILE_SCALAR_TO_TENSOR(int8_t, int8)
PANTILE_SCALAR_TO_TENSOR(int16_t, int16)
PANTILE_SCALAR_TO_TENSOR(int32_t, int32)
PANTILE_SCALAR_TO_TENSOR(int64_t, int64)
PANTILE_SCALAR_TO_TENSOR(bool, bool)
#undef PANTILE_SCALAR_TO_TENSOR

// Fortran's BLAS, which libtorch_cpu exports, as a rule.
extern "C" __attribute__((weak)) void sgemm_(
    const char* left, const char* right, const int* m, const int* n, const int* k,
    const float* alpha, const float* a, const int* a_step, const float* b, const int* b_step,
    const float* beta, float* c, const int* c_step);

extern "C" void pantile_max_pool2d(
    const float* source, float* result, int64_t* indices, int64_t planes, const int64_t* down,
    const int64_t* across);

namespace pantile {

inline bool is_plain_float(AtenTensorHandle tensor, int64_t* dims, int64_t** sizes) {
  int32_t dtype = 0;
  bool contiguous = false;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor, &dtype));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_is_contiguous(tensor, &contiguous));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor, dims));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor, sizes));
  return dtype == aoti_torch_dtype_float32() && contiguous;
}

// Ours for plain floats, ATen's for the rest.
inline AOTITorchError max_pool2d(
    AtenTensorHandle self, const int64_t* kernel, int64_t kernel_count, const int64_t* stride,
    int64_t stride_count, const int64_t* padding, int64_t padding_count, const int64_t* dilation,
    int64_t dilation_count, int32_t ceil_mode, AtenTensorHandle* values, AtenTensorHandle* places) {
  int64_t dims = 0;
  int64_t* sizes = nullptr;
  if (!is_plain_float(self, &dims, &sizes) || dims != 4 || ceil_mode != 0 ||
      sizes[2] * sizes[3] > std::numeric_limits<int32_t>::max()) {
    return aoti_torch_cpu_max_pool2d_with_indices(
        self, kernel, kernel_count, stride, stride_count, padding, padding_count, dilation,
        dilation_count, ceil_mode, values, places);
  }
  int64_t windows[2][6];
  for (int64_t i = 0; i < 2; i++) {
    int64_t k = kernel[kernel_count > 1 ? i : 0];
    int64_t s = stride_count == 0 ? k : stride[stride_count > 1 ? i : 0];
    int64_t p = padding[padding_count > 1 ? i : 0];
    int64_t d = dilation[dilation_count > 1 ? i : 0];
    int64_t results = (sizes[2 + i] + 2 * p - d * (k - 1) - 1) / s + 1;
    const int64_t window[6] = {k, s, p, d, sizes[2 + i], results};
    std::copy(window, window + 6, windows[i]);
  }
  const int64_t shape[4] = {sizes[0], sizes[1], windows[0][5], windows[1][5]};
  const int64_t strides[4] = {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1};
  int32_t cpu = aoti_torch_device_type_cpu();
  AOTI_TORCH_ERROR_CODE_CHECK(
      empty_strided(4, shape, strides, aoti_torch_dtype_float32(), cpu, 0, values));
  AOTI_TORCH_ERROR_CODE_CHECK(
      empty_strided(4, shape, strides, aoti_torch_dtype_int64(), cpu, 0, places));
  pantile_max_pool2d(static_cast<const float*>(data_of(self)),
                     static_cast<float*>(data_of(plain(*values))),
                     static_cast<int64_t*>(data_of(plain(*places))), shape[0] * shape[1],
                     windows[0], windows[1]);
  return AOTI_TORCH_SUCCESS;
}

// A matrix of floats as BLAS sees it: rows or columns side by side, `step` apart.
struct Matrix {
  char order = 0;  // 'r' rows, 'c' columns, 0 neither
  float* data = nullptr;
  int rows = 0, columns = 0, step = 0;

  explicit Matrix(AtenTensorHandle tensor) {
    int32_t dtype = 0;
    int64_t dims = 0, *sizes = nullptr, *strides = nullptr;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor, &dtype));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor, &dims));
    constexpr int64_t most = std::numeric_limits<int>::max();
    if (dims != 2 || dtype != aoti_torch_dtype_float32()) return;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor, &sizes));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor, &strides));
    if (sizes[0] < 1 || sizes[1] < 1 || sizes[0] > most || sizes[1] > most) return;
    rows = static_cast<int>(sizes[0]);
    columns = static_cast<int>(sizes[1]);
    int64_t along = rows == 1 ? columns : strides[0], across = columns == 1 ? rows : strides[1];
    if ((columns == 1 || strides[1] == 1) && along >= columns && along <= most) {
      order = 'r';
      step = static_cast<int>(along);
    } else if ((rows == 1 || strides[0] == 1) && across >= rows && across <= most) {
      order = 'c';
      step = static_cast<int>(across);
    }
    data = static_cast<float*>(data_of(tensor));
  }
};

// ATen's way to the same function of MKL takes longer than the product of small matrices.
inline bool multiply(const Matrix& a, const Matrix& b, const Matrix& out, float keep) {
  if (sgemm_ == nullptr || a.order == 0 || b.order == 0 || out.order == 0) return false;
  const float one = 1.0F;
  if (out.order == 'r') {  // BLAS thinks in columns: the transposed product
    const char left = b.order == 'r' ? 'N' : 'T', right = a.order == 'r' ? 'N' : 'T';
    sgemm_(&left, &right, &out.columns, &out.rows, &a.columns, &one, b.data, &b.step, a.data,
           &a.step, &keep, out.data, &out.step);
  } else {
    const char left = a.order == 'c' ? 'N' : 'T', right = b.order == 'c' ? 'N' : 'T';
    sgemm_(&left, &right, &out.rows, &out.columns, &a.columns, &one, a.data, &a.step, b.data,
           &b.step, &keep, out.data, &out.step);
  }
  return true;
}

inline AOTITorchError mm_out(AtenTensorHandle out, AtenTensorHandle a, AtenTensorHandle b) {
  if (multiply(Matrix(a), Matrix(b), Matrix(out), 0.0F)) return AOTI_TORCH_SUCCESS;
  return aoti_torch_cpu_mm_out(out, a, b);
}

inline AOTITorchError addmm_out(
    AtenTensorHandle out, AtenTensorHandle bias, AtenTensorHandle a, AtenTensorHandle b,
    double beta, double alpha) {
  int64_t dims = 0, *sizes = nullptr;
  Matrix result(out), left(a), right(b);
  if (beta == 1.0 && alpha == 1.0 && result.order == 'r' && left.order != 0 && right.order != 0 &&
      is_plain_float(bias, &dims, &sizes) && dims == 1 && sizes[0] == result.columns) {
    const auto* row = static_cast<const float*>(data_of(bias));
    for (int64_t i = 0; i < result.rows; i++) {
      std::memcpy(result.data + i * result.step, row, sizeof(float) * result.columns);
    }
    if (multiply(left, right, result, 1.0F)) return AOTI_TORCH_SUCCESS;
  }
  return aoti_torch_cpu_addmm_out(out, bias, a, b, beta, alpha);
}

}  // namespace pantile

#define aoti_torch_cpu_addmm_out pantile::addmm_out
#define aoti_torch_cpu_max_pool2d_with_indices pantile::max_pool2d
#define aoti_torch_cpu_mm_out pantile::mm_out
#define aoti_torch_empty_strided pantile::empty_strided
#define aoti_torch_new_tensor_handle pantile_new_tensor_handle
#define aoti_torch_proxy_executor_call_function pantile::call_function

// Written by the host program.
static void run_program(AtenTensorHandle* input_handles, AtenTensorHandle* output_handles);
extern const int64_t pantile_output_count;

extern "C" {

void pantile_set_callback(pantile::Callback callback) { pantile::callback = callback; }

void* pantile_create(void) { return new (std::nothrow) pantile::Context(); }

void pantile_destroy(void* given) {
  auto* context = static_cast<pantile::Context*>(given);
  if (context == nullptr) return;
  pantile::release_outputs(*context);
  for (auto& view : context->views) {
    if (view.handle != nullptr) aoti_torch_delete_tensor_object(view.handle);
  }
  for (auto& buffer : context->buffers) {
    if (buffer.handle != nullptr) aoti_torch_delete_tensor_object(pantile::plain(buffer.handle));
  }
  if (context->arena != nullptr) munmap(context->arena, context->arena_bytes);
  delete context;
}

int pantile_run(void* given, AtenTensorHandle* inputs, AtenTensorHandle* outputs) {
  auto* context = static_cast<pantile::Context*>(given);
  pantile::Context* outside = std::exchange(pantile::current, context);
  int result = 0;
  try {
    pantile::release_outputs(*context);
    if (context->recorded && !context->planned) pantile::plan(*context);
    if (!context->recorded) pantile::forget_recording(*context);
    context->next_buffer = context->next_view = 0;
    context->outputs.resize(pantile_output_count, nullptr);
    run_program(inputs, context->outputs.data());
    context->recorded = true;
    for (int64_t i = 0; i < pantile_output_count; i++) outputs[i] = pantile::plain(context->outputs[i]);
  } catch (const std::exception& error) {
    context->error = error.what();
    result = 1;
  }
  pantile::current = outside;
  return result;
}

const char* pantile_error(void* given) { return static_cast<pantile::Context*>(given)->error.c_str(); }

}  // extern "C"
