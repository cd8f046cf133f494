static void run_team(void* given, int t, int T) { run_kernels((Context*)given, t, T); }

static int make_outputs(Context* context) {
  for (int i = 0; i < OUTPUTS; i++) {
    const Output& output = outputs[i];
    context->results[i] = big_memory(output.bytes);
    if (context->results[i] == nullptr ||
        aoti_torch_create_tensor_from_blob(context->results[i], output.dims, output.sizes,
                                           output.strides, 0, output.dtype(),
                                           aoti_torch_device_type_cpu(), 0, &context->handles[i]))
      return 1;
  }
  return 0;
}

// Memory for one more thread, kept until the end.
static bool has_scratch(Context* context, int T) {
  for (int t = context->threads; t < T; t++) {
    context->scratch[t] = (float*)big_memory(SCRATCH * 4);
    if (context->scratch[t] == nullptr) return false;
    context->threads = t + 1;
  }
  return true;
}

extern "C" {

void pantile_set_callback(void*) {}

void pantile_destroy(void* given) {
  Context* context = (Context*)given;
  if (context == nullptr) return;
  team_stop(&context->team);
  for (int i = 0; i < OUTPUTS; i++) {
    if (context->handles[i]) aoti_torch_delete_tensor_object(context->handles[i]);
    free(context->results[i]);
  }
  for (int t = 0; t < context->threads; t++) free(context->scratch[t]);
  free(context->arena);
  free(context);
}

void* pantile_create(void) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, sizeof(Context)) != 0) return nullptr;
  Context* context = (Context*)memset(memory, 0, sizeof(Context));
  context->arena = big_memory(ARENA);
  if (context->arena == nullptr || make_outputs(context) || !has_scratch(context, 1)) {
    pantile_destroy(context);
    return nullptr;
  }
  return context;
}

int pantile_run(void* given, void** tensors, void** handles) {
  Context* context = (Context*)given;
  for (int i = 0; i < INPUTS; i++)
    if (aoti_torch_get_data_ptr(tensors[i], &context->inputs[i])) {
      context->error = "an input has no memory";
      return 1;
    }
  context->failed = 0;
  int T = omp_get_max_threads == nullptr ? 1 : omp_get_max_threads();
  T = T > MOST_THREADS ? MOST_THREADS : T;
  if (!has_scratch(context, T)) {
    context->error = "there is no memory for the threads";
    return 1;
  }
  POISON_ARENA(context);
  if (T == 1) {
    run_kernels(context, 0, 1);
  } else {
    if (context->team_size != T) {
      team_stop(&context->team);
      team_start(&context->team, T, run_team);
      context->team_size = T;
    }
    team_run(&context->team, context);
  }
  if (context->failed) {
    context->error = "index out of bounds";
    return 1;
  }
  for (int i = 0; i < OUTPUTS; i++) handles[i] = context->handles[i];
  return 0;
}

const char* pantile_error(void* given) {
  const char* error = ((Context*)given)->error;
  return error == nullptr ? "" : error;
}

// How many kernels ran since the program was loaded: a check on the compiler.
i64 pantile_kernels_run(void* given) { return ((Context*)given)->ran; }
i64 pantile_kernels(void) { return KERNELS; }

}  // extern "C"
