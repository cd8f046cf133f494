// The frame of a program: memory, threads, and the functions that the device loop calls.
//
// The generated part comes before: the kernels, `run_kernels`, and the numbers named here in capitals.

#pragma once

extern "C" {
int aoti_torch_get_data_ptr(void* tensor, void** data);
int aoti_torch_create_tensor_from_blob(void* data, i64 dims, const i64* sizes, const i64* strides,
                                       i64 offset, i32 dtype, i32 device, i32 device_index,
                                       void** tensor);
int aoti_torch_delete_tensor_object(void* tensor);
i32 aoti_torch_device_type_cpu();
i32 aoti_torch_dtype_float32();
i32 aoti_torch_dtype_float64();
i32 aoti_torch_dtype_bfloat16();
i32 aoti_torch_dtype_float16();
i32 aoti_torch_dtype_int64();
i32 aoti_torch_dtype_int32();
i32 aoti_torch_dtype_int16();
i32 aoti_torch_dtype_int8();
i32 aoti_torch_dtype_uint8();
i32 aoti_torch_dtype_bool();
__attribute__((weak)) int omp_get_max_threads();
int posix_memalign(void** memory, u64 align, u64 bytes);
int madvise(void* memory, u64 bytes, int advice);
void free(void*);
}

constexpr int HUGE_PAGES = 14;  // of madvise
constexpr u64 HUGE_PAGE = u64{2} << 20;

INLINE char* big_memory(u64 bytes) {
  const u64 align = bytes >= HUGE_PAGE ? HUGE_PAGE : 4096;
  void* memory = nullptr;
  bytes = (bytes + align) / align * align;
  if (posix_memalign(&memory, align, bytes) != 0) return nullptr;
  if (align == HUGE_PAGE) madvise(memory, bytes, HUGE_PAGES);
  return (char*)memory;
}

// What the caller says about the constant inputs of the next run.
enum Keep { CHANGED, UNCHANGED, SURELY_UNCHANGED };

// An input that the setup reads, and the bytes from its first to its last element.
struct Constant {
  int input;
  u64 bytes;
};

struct Output {
  i64 dims;
  i64 sizes[8], strides[8];
  i32 (*dtype)();
  u64 bytes;
};
