// The plan of a device loop, as Python hands it over: the same structures are in structures.py.
// And the functions of torch's C interface that the loop calls.

#pragma once

#include <cstdint>

extern "C" {
struct AtenTensorOpaque;
typedef AtenTensorOpaque* Handle;
bool aoti_torch_grad_mode_is_enabled();
void aoti_torch_grad_mode_set_enabled(bool enabled);
int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_delete_tensor_object(Handle tensor);
int32_t aoti_torch_get_data_ptr(Handle tensor, void** data);
int32_t aoti_torch_get_dim(Handle tensor, int64_t* dims);
int32_t aoti_torch_get_sizes(Handle tensor, int64_t** sizes);
int32_t aoti_torch_get_dtype(Handle tensor, int32_t* dtype);
int32_t aoti_torch_is_contiguous(Handle tensor, bool* contiguous);
int32_t aoti_torch_create_tensor_from_blob(void* data, int64_t dims, const int64_t* sizes,
                                           const int64_t* strides, int64_t offset, int32_t dtype,
                                           int32_t device_type, int32_t device_index, Handle* made);
int32_t aoti_torch_copy_(Handle target, Handle source, int32_t non_blocking);
}

extern "C" {

struct ProgramEntry {
  void* (*create)();
  void (*destroy)(void*);
  int (*run)(void*, Handle*, Handle*);
  const char* (*error)(void*);
  // Null if nothing is made of constants: those of the next run are those of the run before; and
  // how often something was made of them.
  void (*keep)(void*, int is_sure);
  int64_t (*setups)(void*);
};

enum InputKind : int32_t { STATE, ARGUMENT, ACCUMULATOR, SEEDS, OLD_WEIGHT, NEW_WEIGHT };

struct InputPlan {  // one input of one replica
  int32_t kind;
  int32_t argument;
  Handle handle;  // ours from now on; none for an argument
  char* data;
  int64_t bytes;
};

struct ViewPlan {  // a part of an argument, or a result of one micro-batch
  int64_t dims;
  const int64_t* sizes;
  const int64_t* strides;
  int64_t bytes;
  int32_t dtype;
  int32_t by_torch;  // copy with torch, which resolves a pending conjugation
};

enum SumKind : int32_t { FLOAT32, FLOAT64, BFLOAT16, FLOAT16 };

struct SumPlan {  // target = sources[0] + sources[1] + ..., from left to right
  int64_t elements;
  char* target;
  const char* const* sources;
  int64_t count;
  int32_t kind;
};

struct LoopPlan {
  ProgramEntry body, update;
  int64_t accumulation, replicas, first_replica, micro_batches;
  int64_t workers, threads, update_threads;
  int64_t inputs, arguments, outputs, results, update_inputs, update_outputs, sums;
  const InputPlan* input;  // [replicas][inputs]
  const ViewPlan* argument;
  const ViewPlan* result;
  const Handle* update_input;
  const SumPlan* sum;
  const int64_t* parts;    // [iterations][accumulation][replicas]
  const int64_t* slots;    // the same
  const uint8_t* wanted;   // [iterations][accumulation]
  double deadline;         // seconds
  int64_t writes;          // do programs write to tensors that other loops may read?
  // The rest stays Python's, and outlives the loop.
  char* const* argument_data;
  char* const* result_data;
  double* times;           // [iterations][accumulation][replicas][4]
  int64_t* counters;       // [replicas]
  const uint64_t* seed;
  const uint64_t* constants;  // a number that is another one when a constant has changed; 0: unknown
};

struct Failure {
  int64_t iteration, step, replica;  // step -1: the update; replica -1: no program was running
  char message[4000];
};
}
