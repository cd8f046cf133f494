// The threads of one program: they sleep between steps and meet at barriers within one.
//
//   caller (t = 0)   team_run ── run(state, 0, T) ──┬──────┬── last barrier ── returns
//                        │ wakes                    barrier barrier
//   worker (t = 1)   asleep ──── run(state, 1, T) ──┴──────┴── last barrier ── asleep
//
// Waiting spins for some microseconds, then sleeps in the kernel: a core that falls idle fetches
// the thread everybody waits for, which is what keeps a busy machine from collapsing. How long it
// spins is learnt: longer while that saves the sleep, shorter while it does not (the other thread
// may want this very core). It never yields: under a rival, that gives away whole time slices.
//
// Nothing is started before the first step that has more than one thread; after a fork, the
// child starts its own workers at its first step.

#pragma once

extern "C" int pthread_create(u64* thread, const void* attributes, void* (*run)(void*), void*);
extern "C" int pthread_join(u64 thread, void** result);
extern "C" int pthread_sigmask(int how, const void* set, void* old);
extern "C" int getpid();
extern "C" long syscall(long number, ...);

#if defined(__x86_64__)
constexpr long FUTEX = 202;
INLINE void relax() { __builtin_ia32_pause(); }
#else
constexpr long FUTEX = 98;
INLINE void relax() { asm volatile("yield"); }
#endif
constexpr int FUTEX_WAIT_HERE = 128, FUTEX_WAKE_HERE = 129;  // within this process
constexpr int MAX_THREADS = 64;
constexpr u32 FEWEST_SPINS = 16, MOST_SPINS = 2048;  // one takes about 25 ns

// A number that threads wait for, on a cache line of its own.
struct alignas(64) Signal {
  u32 count;
  u32 spins;  // before sleeping, learnt
};

struct Team {
  int threads;  // of a step, the caller's included
  void (*run)(void* state, int t, int T);
  void* state;
  int process;  // that the workers live in; 0 before there are any
  bool stopping;
  struct Worker {
    Team* team;
    u64 thread;
    int t;
    u32 step;  // the last one it has seen
  } workers[MAX_THREADS];

  Signal step;              // workers have something to do
  Signal phase;             // everybody has arrived at a barrier
  alignas(64) u32 arrived;  // at the barrier
  alignas(64) u32 asleep;   // threads that need a call into the kernel to go on
};

INLINE u32 signal_count(Signal* signal) {
  return __atomic_load_n(&signal->count, __ATOMIC_ACQUIRE);
}

// Wait until the count is no longer `old`.
APART void team_wait(Team* team, Signal* signal, u32 old) {
  const u32 spins = __atomic_load_n(&signal->spins, __ATOMIC_RELAXED) + FEWEST_SPINS;
  for (u32 i = 0; i < spins; i++) {
    if (signal_count(signal) != old) {
      if (i > FEWEST_SPINS && spins < MOST_SPINS)
        __atomic_store_n(&signal->spins, 2 * spins, __ATOMIC_RELAXED);
      return;
    }
    relax();
  }
  __atomic_store_n(&signal->spins, spins / 2, __ATOMIC_RELAXED);
  // Whoever counts up looks at `asleep` afterwards, and the kernel looks at the count again before
  // it lets us sleep: one of the two notices.
  __atomic_add_fetch(&team->asleep, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&signal->count, __ATOMIC_SEQ_CST) == old)
    syscall(FUTEX, &signal->count, FUTEX_WAIT_HERE, old, nullptr, nullptr, 0);
  __atomic_sub_fetch(&team->asleep, 1, __ATOMIC_SEQ_CST);
}

INLINE void team_advance(Team* team, Signal* signal) {
  __atomic_add_fetch(&signal->count, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&team->asleep, __ATOMIC_SEQ_CST))
    syscall(FUTEX, &signal->count, FUTEX_WAKE_HERE, 0x7fffffff, nullptr, nullptr, 0);
}

// Nobody goes on before everybody is here; what was written before is seen by all after.
APART void team_meet(Team* team) {
  const u32 phase = signal_count(&team->phase);
  if (__atomic_add_fetch(&team->arrived, 1, __ATOMIC_ACQ_REL) == (u32)team->threads) {
    __atomic_store_n(&team->arrived, 0, __ATOMIC_RELAXED);
    team_advance(team, &team->phase);
  } else {
    team_wait(team, &team->phase, phase);
  }
}

INLINE void barrier(Team* team) {
  if (team->threads > 1) team_meet(team);
}

APART void* team_work(void* given) {
  Team::Worker* me = (Team::Worker*)given;
  Team* team = me->team;
  for (;;) {
    team_wait(team, &team->step, me->step++);
    if (team->stopping) return nullptr;
    team->run(team->state, me->t, team->threads);
    team_meet(team);
  }
}

// Start the workers with all signals blocked: those are for the threads of the host program.
APART void team_hire(Team* team) {
  u64 all[16], before[16];
  memset(all, 0xff, sizeof all);
  pthread_sigmask(2, all, before);
  team->arrived = team->asleep = 0;
  int t = 1;
  for (; t < team->threads; t++) {
    Team::Worker* worker = &team->workers[t];
    *worker = {team, 0, t, team->step.count};
    if (pthread_create(&worker->thread, nullptr, team_work, worker) != 0) break;
  }
  team->threads = t;  // as many as the system gives
  team->process = getpid();
  pthread_sigmask(2, before, nullptr);
}

// Says what the team will do; its workers begin with the first step.
INLINE void team_start(Team* team, int T, void (*run)(void* state, int t, int T)) {
  memset(team, 0, sizeof *team);
  team->threads = T < 1 ? 1 : T > MAX_THREADS ? MAX_THREADS : T;
  team->run = run;
  team->step.spins = team->phase.spins = MOST_SPINS / 4;
}

// One step: every thread runs its part, and the caller returns when all are done.
INLINE void team_run(Team* team, void* state) {
  if (team->threads > 1 && team->process != getpid()) team_hire(team);
  if (team->threads == 1) return team->run(state, 0, 1);
  team->state = state;
  team_advance(team, &team->step);
  team->run(state, 0, team->threads);
  team_meet(team);
}

INLINE void team_stop(Team* team) {
  if (team->process == 0 || team->process != getpid()) return;  // none, or our parent's
  team->stopping = true;
  team_advance(team, &team->step);
  for (int t = 1; t < team->threads; t++) pthread_join(team->workers[t].thread, nullptr);
  team->process = 0;
  team->stopping = false;
}
