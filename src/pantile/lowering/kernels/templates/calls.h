// Operators of torch's that are called between kernels, through the host's language.
//
// What a kernel wrote is given as a tensor over its memory; what an operator makes is kept until the
// end of the run, and kernels read it where it lies.

#pragma once

extern "C" {
int aoti_torch_new_tensor_handle(void* tensor, void** copy);
__attribute__((weak)) void GOMP_parallel(void (*run)(void*), void* state, u32 threads, u32 flags);
__attribute__((weak)) int omp_get_num_threads();
__attribute__((weak)) int omp_get_thread_num();
}

// It owns the tensors it is given from then on, and gives back those of the results.
using Callback = int (*)(i64 number, i64 ints, i64* values, i64 count, void** tensors);
static Callback callback = nullptr;

static void release_made(Context* context) {
  for (int i = 0; i < MADE; i++) {
    if (context->made[i]) aoti_torch_delete_tensor_object(context->made[i]);
    context->made[i] = nullptr;
  }
}

static void run_team(void* context, int t, int T);

static void run_as_one_of_pool(void* given) {
  Context* context = (Context*)given;
  const int T = omp_get_num_threads(), t = omp_get_thread_num();
  if (T == context->team.threads) return run_team(context, t, T);
  if (t == 0) run_team(context, 0, 1);  // the pool has fewer
}

// Operators of torch's run on OpenMP's threads, which spin for milliseconds when they are done: a
// team of our own would wait for the cores. So the kernels between calls use the same threads.
static bool run_beside_calls(Context* context, int T) {
  if (GOMP_parallel == nullptr || omp_get_num_threads == nullptr || omp_get_thread_num == nullptr)
    return false;
  GOMP_parallel(run_as_one_of_pool, context, T, 0);
  return true;
}

struct Outside {
  const int number, operands, first, results;
  void** const tensors;
  int given = 0;
  bool failed = false;

  // An operand in memory of ours.
  void view(void* data, const Output& layout) {
    failed |= aoti_torch_create_tensor_from_blob(data, layout.dims, layout.sizes, layout.strides, 0,
                                                 layout.dtype(), aoti_torch_device_type_cpu(), 0,
                                                 &tensors[given++]) != 0;
  }

  // An operand that is a tensor: an input, or made by another call.
  void share(void* tensor) { failed |= aoti_torch_new_tensor_handle(tensor, &tensors[given++]) != 0; }

  int call(Context* context) {
    const int t = 0;
    COUNT_KERNEL(context);
    if (failed || callback == nullptr) return 1;
    for (int i = 0; i < results; i++) tensors[operands + i] = nullptr;
    if (callback(number, 0, nullptr, operands + results, tensors)) return 1;
    for (int i = 0; i < results; i++) {
      context->made[first + i] = tensors[operands + i];
      failed |= aoti_torch_get_data_ptr(tensors[operands + i], &context->made_data[first + i]) != 0;
    }
    return failed;
  }
};
