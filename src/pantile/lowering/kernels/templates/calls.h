// Operators of torch's that are called between kernels, through the host's language.
//
// What a kernel wrote is given as a tensor over its memory; what an operator makes is kept until the
// end of the run, and kernels read it where it lies.

#pragma once

extern "C" {
int aoti_torch_new_uninitialized_tensor(void** tensor);
}

using Callback = int (*)(i64 number, i64 ints, i64* values, i64 count, void** tensors);
static Callback callback = nullptr;

static void release_made(Context* context) {
  for (int i = 0; i < MADE; i++) {
    if (context->made[i]) aoti_torch_delete_tensor_object(context->made[i]);
    context->made[i] = nullptr;
  }
}

struct Outside {
  const int number, operands, first, results;
  int views = 0;
  bool failed = false;
  void* own[MOST_VIEWS + 1] = {};

  void view(void** tensor, void* data, const Output& layout) {
    failed |= aoti_torch_create_tensor_from_blob(data, layout.dims, layout.sizes, layout.strides, 0,
                                                 layout.dtype(), aoti_torch_device_type_cpu(), 0,
                                                 tensor) != 0;
    own[views++] = *tensor;
  }

  int call(Context* context, void** tensors) {
    const int t = 0;
    COUNT_KERNEL(context);
    for (int i = 0; i < results; i++) {
      failed |= aoti_torch_new_uninitialized_tensor(&context->made[first + i]) != 0;
      tensors[operands + i] = context->made[first + i];
    }
    failed = failed || callback == nullptr ||
             callback(number, 0, nullptr, operands + results, tensors) != 0;
    for (int i = 0; i < results && !failed; i++)
      failed = aoti_torch_get_data_ptr(context->made[first + i], &context->made_data[first + i]) != 0;
    for (int i = 0; i < views; i++) aoti_torch_delete_tensor_object(own[i]);
    return failed;
  }
};
