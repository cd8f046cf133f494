/* Tiny programs with the interface of compiled ones; -DPROGRAM_<NAME> chooses one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void* Handle;
int32_t aoti_torch_get_data_ptr(Handle, void**);
int32_t aoti_torch_get_dim(Handle, int64_t*);
int32_t aoti_torch_get_numel(Handle, int64_t*);
int32_t aoti_torch_get_sizes(Handle, int64_t**);
int32_t aoti_torch_get_dtype(Handle, int32_t*);
int32_t aoti_torch_create_tensor_from_blob(void*, int64_t, const int64_t*, const int64_t*, int64_t,
                                           int32_t, int32_t, int32_t, Handle*);
int32_t aoti_torch_delete_tensor_object(Handle);
int32_t aoti_torch_copy_(Handle, Handle, int32_t);
int32_t aoti_torch_dtype_float32(void);
int32_t aoti_torch_dtype_int64(void);
size_t aoti_torch_dtype_element_size(int32_t);
bool aoti_torch_grad_mode_is_enabled(void);

typedef struct {
  int runs;
  char error[100];
  void* buffer;
  Handle output;
} Context;

static int live = 0;
int live_contexts(void) { return live; }

void* pantile_create(void) {
#ifdef PROGRAM_NO_CONTEXT
  static int created = 0;
  if (created++ == 1) return NULL; /* the second one */
#endif
  __sync_fetch_and_add(&live, 1);
  return calloc(1, sizeof(Context));
}

void pantile_destroy(void* context) {
  Context* c = context;
  if (c->output) aoti_torch_delete_tensor_object(c->output);
  free(c->buffer);
  free(c);
  __sync_fetch_and_sub(&live, 1);
}

const char* pantile_error(void* context) { return ((Context*)context)->error; }

static float* floats(Handle tensor) {
  void* data;
  aoti_torch_get_data_ptr(tensor, &data);
  return data;
}

static int64_t count(Handle tensor) {
  int64_t n;
  aoti_torch_get_numel(tensor, &n);
  return n;
}

/* The context's own output: made at the first run, the same one ever after. */
static void* output(Context* c, int64_t dims, const int64_t* sizes, const int64_t* strides,
                    int32_t dtype, Handle* outputs) {
  int64_t bytes = 8;
  for (int64_t i = 0; i < dims; ++i) bytes *= sizes[i];
  if (!c->output) {
    c->buffer = malloc(bytes + 8);
    aoti_torch_create_tensor_from_blob(c->buffer, dims, sizes, strides, 0, dtype, 0, 0, &c->output);
  }
  outputs[0] = c->output;
  return c->buffer;
}

static float* output_like(Context* c, Handle tensor, Handle* outputs) {
  int64_t dims, *sizes, strides[8], step = 1;
  aoti_torch_get_dim(tensor, &dims);
  aoti_torch_get_sizes(tensor, &sizes);
  for (int64_t i = dims - 1; i >= 0; --i) strides[i] = step, step *= sizes[i];
  return output(c, dims, sizes, strides, aoti_torch_dtype_float32(), outputs);
}

int pantile_run(void* context, Handle* in, Handle* out) {
  Context* c = context;
  ++c->runs;

#ifdef PROGRAM_SCALE /* out = 2 x + state */
  float* y = output_like(c, in[0], out);
  for (int64_t i = 0; i < count(in[0]); ++i) y[i] = 2 * floats(in[0])[i] + floats(in[1])[0];
#endif

#ifdef PROGRAM_TRANSPOSE /* out[j][i] = x[i][j], as a view of memory in the order of x */
  int64_t *sizes, turned[2], strides[2];
  aoti_torch_get_sizes(in[0], &sizes);
  turned[0] = sizes[1], turned[1] = sizes[0];
  strides[0] = 1, strides[1] = sizes[1];
  float* y = output(c, 2, turned, strides, aoti_torch_dtype_float32(), out);
  memcpy(y, floats(in[0]), 4 * count(in[0]));
#endif

#ifdef PROGRAM_LONGER /* an output of one element more */
  int64_t n = count(in[0]) + 1, one = 1;
  output(c, 1, &n, &one, aoti_torch_dtype_float32(), out);
#endif

#ifdef PROGRAM_OTHER_TYPE /* an output of the right shape, but int64 */
  int64_t n = count(in[0]), one = 1;
  output(c, 1, &n, &one, aoti_torch_dtype_int64(), out);
#endif

#ifdef PROGRAM_NO_OUTPUT
  out[0] = NULL;
#endif

#ifdef PROGRAM_ADD /* accumulator += x */
  for (int64_t i = 0; i < count(in[0]); ++i) floats(in[1])[i] += floats(in[0])[i];
  (void)out;
#endif

#ifdef PROGRAM_COPY /* accumulator = x, whatever the type: the bytes */
  int32_t dtype;
  aoti_torch_get_dtype(in[0], &dtype);
  memcpy(floats(in[1]), floats(in[0]), count(in[0]) * aoti_torch_dtype_element_size(dtype));
  (void)out;
#endif

#ifdef PROGRAM_MEAN /* accumulator = old * accumulator + new * x */
  double old = *(double*)floats(in[2]), new = *(double*)floats(in[3]);
  for (int64_t i = 0; i < count(in[0]); ++i)
    floats(in[1])[i] = (float)(old * floats(in[1])[i] + new * floats(in[0])[i]);
  (void)out;
#endif

#ifdef PROGRAM_DESCEND /* w -= g / 2 */
  for (int64_t i = 0; i < count(in[0]); ++i) floats(in[0])[i] -= floats(in[1])[i] / 2;
  (void)out;
#endif

#ifdef PROGRAM_SEEDS /* out = seeds */
  int64_t n = count(in[0]), one = 1;
  memcpy(output(c, 1, &n, &one, aoti_torch_dtype_int64(), out), floats(in[0]), 8 * n);
#endif

#ifdef PROGRAM_FAIL_THIRD
  if (c->runs == 3) {
    snprintf(c->error, sizeof c->error, "run number %d", c->runs);
    return 1;
  }
  (void)in, (void)out;
#endif

#ifdef PROGRAM_FAIL_SILENTLY
  (void)in, (void)out;
  return 7;
#endif

#ifdef PROGRAM_WAIT /* for so many seconds; count += 1 */
  struct timespec t = {0, (long)(1e9 * floats(in[0])[0])};
  nanosleep(&t, NULL);
  ++*floats(in[1]);
  (void)out;
#endif

#ifdef PROGRAM_WORK /* some ten microseconds of arithmetic */
  volatile float x = floats(in[0])[0];
  for (int i = 0; i < 20000; ++i) x = x * 0.999f + 1;
  (void)out;
#endif

#ifdef PROGRAM_SETTINGS /* out = OpenMP's threads, gradient mode, a number for the thread */
  int64_t n = 3, one = 1, many = 100000;
  float* memory = calloc(2 * many, 4);
  Handle from, to; /* a copy large enough to be parallel: torch then sets up its threads */
  aoti_torch_create_tensor_from_blob(memory, 1, &many, &one, 0, 6, 0, 0, &from);
  aoti_torch_create_tensor_from_blob(memory + many, 1, &many, &one, 0, 6, 0, 0, &to);
  aoti_torch_copy_(to, from, 0);
  aoti_torch_delete_tensor_object(from);
  aoti_torch_delete_tensor_object(to);
  free(memory);
  float* y = output(c, 1, &n, &one, aoti_torch_dtype_float32(), out);
  int (*threads)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "omp_get_max_threads");
  y[0] = threads ? threads() : -1;
  y[1] = aoti_torch_grad_mode_is_enabled();
  y[2] = (float)((uintptr_t)pthread_self() >> 12 & 0xffffff);
  (void)in;
#endif

  return 0;
}
