static void run_team(void* given, int t, int T) {
  Context* context = (Context*)given;
  if (context->stage > 0 || context->skips_setup || run_setup(context, t, T))
    stages[context->stage](context, t, T);
}

// Adds the words of a line to sums. Two multiplications, so that no change of all words at once, such
// as another sign, cancels out; one sum for each word of a line, so that none waits for another.
constexpr int LINE = 16;
INLINE void add_line(u32* sums, const void* from, u32 place) {
  u32 words[LINE];
  memcpy(words, from, sizeof words);
  LANEWISE for (int i = 0; i < LINE; i++) {
    u32 word = (words[i] ^ place) * 0x9e3779b1u;
    word ^= word >> 15;
    sums[i] += word * 0x85ebca77u;
  }
}

// Some lines of each constant, spread over it unevenly, so that they are not all of one column: a
// caller who says that nothing has changed may not have seen somebody write to the memory.
static u64 sample_constants(const Context* context) {
  constexpr u64 MOST = 64;
  u64 whole = 0;
  for (int i = 0; i < CONSTANTS; i++) {
    const char* data = (const char*)context->inputs[constants[i].input];
    const u64 lines = constants[i].bytes / (4 * LINE), rest = constants[i].bytes % (4 * LINE);
    const u64 count = lines < MOST ? lines : MOST, apart = lines < MOST ? 1 : lines / MOST;
    u32 sums[LINE] = {};
    for (u64 j = 0; j < count; j++) {
      const u64 line = j * apart + (u64(u32(j * 0x9e3779b1u)) * apart >> 32);
      add_line(sums, data + line * 4 * LINE, u32(line) * 0x27d4eb2fu);
    }
    char last[4 * LINE] = {};
    memcpy(last, data + lines * 4 * LINE, rest);
    add_line(sums, last, ~0u);
    u64 own = (u64)data;
    for (int k = 0; k < LINE; k++) own = (own ^ sums[k]) * 0x9e3779b97f4a7c15ull;
    whole = (whole ^ own) * 0xbf58476d1ce4e5b9ull;
    whole ^= whole >> 29;
  }
  return whole;
}

// Decides whether this run needs the setup; what the caller said holds for one run.
static void choose_setup(Context* context) {
  const Keep keep = context->is_set_up ? context->keep : CHANGED;
  context->keep = CHANGED;
  if (SETUP_KERNELS == 0 || keep == SURELY_UNCHANGED) {
    context->skips_setup = true;
    return;
  }
  const u64 sample = sample_constants(context);
  context->skips_setup = keep == UNCHANGED && sample == context->sample;
  context->sample = sample;
}

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

static void run_stage(Context* context, int T) {
  if (T == 1) return run_team(context, 0, 1);
  if (context->team_size != T) {
    team_stop(&context->team);
    team_start(&context->team, T, run_team);
    context->team_size = T;
  }
#ifdef PANTILE_CALLS
  if (run_beside_calls(context, T)) return;
#endif
  team_run(&context->team, context);
}

// The kernels, and what is called between them; what went wrong, or nothing.
static const char* run_stages(Context* context, int T) {
  for (context->stage = 0;; context->stage++) {
    if (stages[context->stage]) run_stage(context, T);
    if (context->failed) return "index out of bounds";
    if (context->stage == CALLS) return nullptr;
#ifdef PANTILE_CALLS
    if (calls[context->stage](context)) return "a call through Python";
#endif
  }
}

extern "C" {

#ifdef PANTILE_CALLS
void pantile_set_callback(Callback given) { callback = given; }
#else
static void release_made(Context*) {}
void pantile_set_callback(void*) {}
#endif

void pantile_destroy(void* given) {
  Context* context = (Context*)given;
  if (context == nullptr) return;
  release_made(context);
  team_stop(&context->team);
  for (int i = 0; i < OUTPUTS; i++) {
    if (context->handles[i]) aoti_torch_delete_tensor_object(context->handles[i]);
    free(context->results[i]);
  }
  for (int t = 0; t < context->threads; t++) free(context->scratch[t]);
  free(context->arena);
  free(context->kept);
  free(context);
}

void* pantile_create(void) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, sizeof(Context)) != 0) return nullptr;
  Context* context = (Context*)memset(memory, 0, sizeof(Context));
  context->arena = big_memory(ARENA);
  context->kept = big_memory(KEPT);
  if (context->arena == nullptr || context->kept == nullptr || make_outputs(context) || !has_scratch(context, 1)) {
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
  choose_setup(context);
  context->is_set_up = false;
  POISON_ARENA(context);
  context->tensors = tensors;
  context->error = run_stages(context, T);
  release_made(context);
  if (context->error) return 1;
  context->is_set_up = true;
  context->setups += !context->skips_setup;
  for (int i = 0; i < OUTPUTS; i++) handles[i] = context->handles[i];
  return 0;
}

const char* pantile_error(void* given) {
  const char* error = ((Context*)given)->error;
  return error == nullptr ? "" : error;
}

// The constant inputs of the next run are as they were in the run before: what was made of them is
// used again. Unless the caller is sure, a sample of their numbers is compared.
void pantile_keep(void* given, int is_sure) {
  ((Context*)given)->keep = is_sure ? SURELY_UNCHANGED : UNCHANGED;
}

// How often the setup ran, and of how many kernels it is.
i64 pantile_setups(void* given) { return ((Context*)given)->setups; }
i64 pantile_setup_kernels(void) { return SETUP_KERNELS; }

// How many kernels ran since the program was loaded: a check on the compiler.
i64 pantile_kernels_run(void* given) { return ((Context*)given)->ran; }
i64 pantile_kernels(void) { return KERNELS; }

}  // extern "C"
