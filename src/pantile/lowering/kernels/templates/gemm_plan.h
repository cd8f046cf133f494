// How a product is computed, chosen when it is compiled: estimates of cycles for each way (gemm.h) and
// each size of tiles, and where a thread's memory goes.

#pragma once

enum GemmKind { OUTER, DOTS, TURNED, TILES };
enum Triangle { WHOLE, RESULT, LEFT_LOWER, LEFT_UPPER };

// May the unit for matrices be used? In tests it is used for everything.
#if defined(PANTILE_TILES)
constexpr bool HAS_TILES = LANES == 16;
#else
constexpr bool HAS_TILES = false;
#endif
#if defined(PANTILE_ONLY_TILES)
constexpr bool ONLY_TILES = true;
#else
constexpr bool ONLY_TILES = false;
#endif

struct GemmPlan {
  GemmKind kind;
  int rows, vectors;    // of a tile; DOTS: rows and columns; TILES: of what is summed at a time
  bool pack_a, pack_b;
  bool rows_a;          // OUTER: A is packed as it lies, row by row
  int block_k;          // OUTER: steps along k at a time; the sums wait in scratch in between
  int block_strips;     // OUTER: strips that go over all panels together, as many as L2 holds
  float cycles;         // the estimate by which the plan was chosen
  bool pairs = false;   // OUTER: a step along k is a word of two bfloat16
  bool kept_b = false;  // OUTER: the panels of B were packed before
};

// Where OUTER finds its rows of B.
enum PanelsOfB { IN_PLACE, PACKED, PACKED_BEFORE };

// Cycles of one step along k: half of one for a multiply-add, 0.8 for a load, `line` for a vector
// of B from beyond L1 (all measured); fewer than 4 sums wait for each other.
constexpr float step_cycles(int rows, int vectors, float line) {
  const float sums = 0.5f * rows * vectors, loads = 0.8f * (rows + vectors);
  float most = sums > loads ? sums : loads;
  most = most > line * vectors ? most : line * vectors;
  return (most > 2 ? most : 2) + 0.1f * loads;
}

// All tiles of the product; those at the lower and right edge are smaller.
constexpr float tiles_cycles(int M, int N, int K, int rows, int vectors, float line,
                             float widening) {
  const int columns = pieces(N, LANES), strips = M / rows, panels = columns / vectors;
  float steps = 0, fixed = 0;
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) {
      const int r = i ? M % rows : rows, v = j ? columns % vectors : vectors;
      if (r == 0 || v == 0) continue;
      const float tiles = float(i ? 1 : strips) * float(j ? 1 : panels);
      steps += tiles * (step_cycles(r, v, line) + widening * v);
      fixed += tiles * (20 + 1.5f * r * v);
    }
  return steps * K + fixed;
}

// Which part of all steps a triangle leaves to tiles of this size.
constexpr float triangle_part(Triangle triangle, int M, int N, int K, int rows, int width) {
  if (triangle == WHOLE) return 1;
  float steps = 0, all = 0;
  for (int m = 0; m < M; m += rows)
    for (int n = 0; n < N; n += width) {
      all += K;
      if (triangle == RESULT) steps += n < m + rows ? K : 0;
      else steps += triangle == LEFT_LOWER ? smaller(K, m + rows) : K - smaller(K, m);
    }
  return steps / all;
}

constexpr int FEW_ROWS = 32;

// What may stay in a cache at a time, in bytes: a panel in L1 or L2, a block of A in L2.
constexpr i64 L1_PANEL = 24 << 10, L2_PANEL = 104 << 10, L2_BLOCK = 400 << 10;

constexpr GemmPlan outer_candidate(int M, int N, int K, int AM, int AK, int BK, int BN, int rows,
                                   int vectors, PanelsOfB b, bool A16, bool B16) {
  const bool pack_b = b != IN_PLACE;
  const int strips = pieces(M, rows), panels = pieces(N, LANES * vectors);
  GemmPlan plan{OUTER, rows, vectors, false, b == PACKED, A16 && AK == 1, K, strips, 0};
  plan.kept_b = b == PACKED_BEFORE;
  plan.pack_a = A16 || (AK != 1 && panels > 1 && K >= 32 && i64(M) * K > (1 << 12));
  if (plan.pack_b) plan.cycles += float(K) * N * (BN == 1 ? 0.12f : BK == 1 ? 0.3f : 2.f);
  if (plan.rows_a) plan.cycles += float(K) * M * 0.12f;
  else if (plan.pack_a) plan.cycles += float(K) * M * (AM == 1 ? 0.3f : 2.f);
  // Long sums: a panel that does not stay in L2 is cut along k. Alone it may have more of it.
  const i64 panel = 4L * K * LANES * vectors, room = plan.pack_a ? L2_PANEL : 3 * L2_PANEL;
  if (strips > 2 && panel > room + room / 4)
    plan.block_k = round_lanes(pieces(K, pieces(panel, room)));
  // A single strip reads B once, and fastest along its rows: a few of them, over all panels.
  if (strips == 1 && panels > 1 && !pack_b && i64(N) * K > (1 << 18)) plan.block_k = FEW_ROWS;
  const i64 block = 4L * strips * plan.block_k * rows;
  if (plan.pack_a && block > L2_BLOCK) plan.block_strips = pieces(strips, pieces(block, L2_BLOCK));
  // Every strip fetches the panel again: from L1, from L2, or from all over the pages of B.
  const bool near = K < 32 || 4 * i64(K) * (pack_b ? LANES * vectors : BK) < L1_PANEL;
  const float line = near || strips == 1 ? 0 : pack_b ? 2.6f : BK < 256 ? 3 : BK % 1024 ? 4 : 6;
  plan.cycles += tiles_cycles(M, N, K, rows, vectors, line, B16 && !pack_b ? 1 : 0);
  // Every panel fetches A again.
  const bool far = !plan.pack_a && i64(M) * K > (1 << 17);
  plan.cycles += float(panels) * M * K * (far ? 0.15f : 0.03f);
  return plan;
}

// The best of candidate(rows, vectors). `aligned`: rows of A lie at multiples of a page, where they
// share one L1 set; more of them than it has ways do not stay.
template <class Candidate>
constexpr GemmPlan best_tile(int M, int N, bool aligned, Candidate candidate) {
  GemmPlan best{};
  best.cycles = 1e30f;
  for (int vectors = 1; vectors <= smaller(pieces(N, LANES), REGISTERS / 2 - 1); vectors++)
    for (int rows = 1; rows <= M && rows * vectors + vectors < REGISTERS; rows++) {
      if (rows > 8 && rows != M && aligned) continue;
      const GemmPlan plan = candidate(rows, vectors);
      if (plan.cycles < best.cycles) best = plan;
    }
  return best;
}

constexpr GemmPlan outer_plan(int M, int N, int K, int AM, int AK, int BK, int BN, bool A16,
                              bool B16, bool KEPT_B) {
  return best_tile(M, N, AK == 1 && AM % 1024 == 0 && !A16, [=](int rows, int vectors) {
    const PanelsOfB panels = KEPT_B ? PACKED_BEFORE : PACKED;
    const GemmPlan packed =
        outer_candidate(M, N, K, AM, AK, BK, BN, rows, vectors, panels, A16, B16);
    if (BN != 1) return packed;
    const GemmPlan plain =
        outer_candidate(M, N, K, AM, AK, BK, BN, rows, vectors, IN_PLACE, A16, B16);
    return packed.cycles < plain.cycles ? packed : plain;
  });
}

// Both operands as words of two numbers; what it costs to bring them there is twice as much a step.
constexpr GemmPlan pairs_plan(int M, int N, int K, int AM, int AK, int BK, int BN, bool KEPT_B) {
  const int words = pieces(K, 2);
  const bool in_place = AK == 1 && AM % 2 == 0 && K % 2 == 0;
  GemmPlan best = best_tile(M, N, in_place && AM % 2048 == 0, [=](int rows, int vectors) {
    const PanelsOfB panels = KEPT_B ? PACKED_BEFORE : PACKED;
    return outer_candidate(M, N, words, AM / 2, AK, BK, BN, rows, vectors, panels, !in_place, false);
  });
  best.cycles += float(words) * ((BN == 1 && !KEPT_B ? 0.06f : 0) * N + (in_place ? 0 : 0.2f * M));
  best.pairs = true;
  return best;
}

// One step of `rows` times `columns` dot products; of long vectors, both sides come from L2.
constexpr float dots_step(int rows, int columns, bool b_far, bool a_far, float widening) {
  const float lines = 1.5f * ((b_far ? columns : 0) + (a_far ? rows : 0));
  const float near = step_cycles(rows, columns, 0) + widening;
  return lines > near ? lines : near;
}

constexpr GemmPlan dots_plan(int M, int N, int K, int AK, bool A16, bool B16) {
  GemmPlan best{};
  best.cycles = 1e30f;
  const bool b_far = K > 128, a_far = i64(M) * K > (1 << 13);
  const float pack = AK == 1 ? 0 : 2.f * M * K;
  for (int columns = 1; columns <= smaller(N, LANES / 2); columns *= 2)
    for (int rows = 1; rows <= M && rows * (columns + 1) + 1 < REGISTERS; rows++) {
      const int rest = M % rows;
      const float b = B16 ? columns : 0, whole = b + (A16 ? rows : 0), part = b + (A16 ? rest : 0);
      float steps = M / rows * dots_step(rows, columns, b_far, a_far, whole);
      if (rest) steps += dots_step(rest, columns, b_far, a_far, part);
      const float sums = 1.6f + 6.f / columns;  // to add up the lanes of one sum
      const float cycles = N * (pieces(K, LANES) * steps / columns + M * sums) + pack;
      if (cycles < best.cycles) best = {DOTS, rows, columns, AK != 1, false, false, K, 1, cycles};
    }
  return best;
}

constexpr GemmPlan turned_plan(int M, int N, int K, int AM, int AK, bool A16, bool B16) {
  const int strips = pieces(M, LANES), full = N / LANES, left = N % LANES;
  const float steps = full * step_cycles(LANES, 1, 0) + (left ? step_cycles(left, 1, 0) : 0);
  const float widening = B16 ? float(N) : 0;
  const float cycles = strips * (K * (steps + widening) + pieces(N, LANES) * 10 * LANES);
  const float pack = AM == 1 ? (A16 ? 0.12f * M * K : 0) : AK == 1 ? 0.4f * M * K : 2.f * M * K;
  return {TURNED, LANES, 1, A16 || AM != 1, false, false, K, 1, cycles + pack};
}

// How many bfloat16 a number of an operand becomes in TILES.
constexpr int planes(bool half, bool BF16) { return BF16 ? 1 : half ? 2 : 3; }

// Cycles to bring a number into tiles: where its neighbours lie side by side, are transposed, or not.
constexpr float tile_pack_cycles(int planes, int near, int far) {
  return (near == 1 ? 0.f : far == 1 ? 0.4f : 2.5f) + (planes == 1 ? 0.2f : 0.35f * planes);
}

constexpr i64 TILES_BLOCK = 800 << 10;  // bytes of A at a time: CPUs with tiles have 2 MiB of L2
constexpr int TILES_DEEP = 16;  // steps along k before sums are put aside: 512 numbers

constexpr GemmPlan tiles_candidate(int M, int N, int K, int AM, int AK, int BK, int BN, int rows,
                                   int vectors, int planes_a, int planes_b, bool KEPT_B) {
  const int steps = pieces(K, 32), strips = pieces(M, rows), panels = pieces(N, 16 * vectors);
  GemmPlan plan{TILES, rows, vectors, true, !KEPT_B, false, steps, strips, 0};
  plan.kept_b = KEPT_B;
  plan.pack_a = planes_a > 1 || AK != 1 || K % 32 != 0 || M % 16 != 0;
  const int blocks = pieces(steps, TILES_DEEP);
  plan.block_k = pieces(steps, blocks);
  const i64 block = 64L * strips * rows * plan.block_k * planes_a;
  if (plan.pack_a) plan.block_strips = pieces(strips, pieces(block, TILES_BLOCK));
  int pairs = 0;
  for (int p = 0; p < planes_a; p++)
    for (int q = 0; q < planes_b; q++) pairs += p + q <= 2;
  // One instruction starts every 16 cycles, and takes 52 until its sum can be added to again. The
  // core is slower meanwhile (1.9 GHz instead of 3 on a Sapphire Rapids): cycles of the usual length.
  const float tiles = 24.f * pieces(M, 16) * pieces(N, 16) * steps * pairs;
  const float waits = rows / 16 * vectors >= 4 ? 1.1f : 3.6f / (rows / 16 * vectors);
  plan.cycles = tiles * waits + float(strips) * panels * blocks * (40 + 2 * rows * vectors);
  if (plan.pack_a) plan.cycles += float(M) * K * tile_pack_cycles(planes_a, AK, AM);
  if (plan.pack_b) plan.cycles += float(N) * K * tile_pack_cycles(planes_b, BN, BK);
  plan.cycles += 200;
  return plan;
}

// Products of floats that are worth it: while the unit is on, the core runs slower, also for what
// comes between products. An LSTM with batch 16 and 128 hidden numbers still gains 6 % by it.
constexpr i64 TILES_WORTH = i64{1} << 20;

constexpr GemmPlan tiles_plan(int M, int N, int K, int AM, int AK, int BK, int BN, bool A16,
                              bool B16, bool BF16, bool KEPT_B) {
  const int a = planes(A16, BF16), b = planes(B16, BF16);
  const GemmPlan square = tiles_candidate(M, N, K, AM, AK, BK, BN, 32, 2, a, b, KEPT_B);
  const GemmPlan flat = tiles_candidate(M, N, K, AM, AK, BK, BN, 16, 4, a, b, KEPT_B);
  return M > 16 && square.cycles <= flat.cycles ? square : flat;
}

// The tile whose steps are fewest, all of them in one piece.
constexpr GemmPlan triangle_plan(int M, int N, int K, int AM, int AK, int BK, int BN, bool A16,
                                 bool B16, Triangle triangle) {
  return best_tile(M, N, AK == 1 && AM % 1024 == 0 && !A16, [=](int rows, int vectors) {
    GemmPlan plan = outer_candidate(M, N, K, AM, AK, BK, BN, rows, vectors, PACKED, A16, B16);
    plan.cycles *= triangle_part(triangle, M, N, K, rows, LANES * vectors);
    plan.block_k = K;
    plan.block_strips = pieces(M, rows);
    return plan;
  });
}

constexpr GemmPlan gemm_plan(int M, int N, int K, int AM, int AK, int BK, int BN, bool A16,
                             bool B16, bool BF16, bool KEPT_B, Triangle triangle) {
  if (triangle != WHOLE) return triangle_plan(M, N, K, AM, AK, BK, BN, A16, B16, triangle);
  GemmPlan best = outer_plan(M, N, K, AM, AK, BK, BN, A16, B16, KEPT_B);
  const GemmPlan turned = turned_plan(M, N, K, AM, AK, A16, B16);
  const GemmPlan dots = dots_plan(M, N, K, AK, A16, B16);
  if (turned.cycles < best.cycles) best = turned;
  if (BK == 1 && dots.cycles < best.cycles) best = dots;
  if (BF16 && MULTIPLIES_PAIRS) {
    const GemmPlan pairs = pairs_plan(M, N, K, AM, AK, BK, BN, KEPT_B);
    if (pairs.cycles < best.cycles) best = pairs;
  }
  if (HAS_TILES && (BF16 || i64(M) * N * K >= TILES_WORTH || ONLY_TILES)) {
    const GemmPlan tiles = tiles_plan(M, N, K, AM, AK, BK, BN, A16, B16, BF16, KEPT_B);
    if (tiles.cycles < best.cycles || ONLY_TILES) best = tiles;
  }
  return best;
}

// Shape, strides, plan, and where things lie in the scratch of a thread.
template <int M_, int N_, int K_, int AM_, int AK_, int BK_, int BN_, bool A16, bool B16, bool BF16,
          bool KEPT_B, Triangle TRIANGLE>
struct GemmParts {
  static constexpr Triangle triangle = TRIANGLE;
  static constexpr int M = M_, N = N_, K = K_, AM = AM_, AK = AK_, BK = BK_, BN = BN_;
  static constexpr GemmPlan plan = gemm_plan(M, N, K, AM, AK, BK, BN, A16, B16, BF16, KEPT_B,
                                              TRIANGLE);
  static constexpr bool panels_b = plan.pack_b || plan.kept_b;
  static constexpr bool tiled = plan.kind == TILES;
  static constexpr int PLANES_A = planes(A16, BF16), PLANES_B = planes(B16, BF16);
  static constexpr int TERMS = tiled ? 32 : plan.pairs ? 2 : 1, STEPS = pieces(K, TERMS);  // along k
  static constexpr int WIDTH = plan.vectors * LANES;  // of a panel of OUTER and TILES
  static constexpr int PANELS = pieces(N, WIDTH), STRIPS = pieces(M, plan.rows);
  // Floats of a number of columns or rows for a step along k.
  static constexpr i64 STEP_FLOATS_A = tiled ? 16 * PLANES_A : 1, STEP_FLOATS_B = tiled ? 16 * PLANES_B : 1;
  static constexpr i64 TILE = i64(plan.rows) * WIDTH;
  static constexpr i64 PANEL = i64(plan.block_k) * WIDTH * STEP_FLOATS_B;
  static constexpr bool one_block = plan.block_strips == STRIPS;  // a panel is used up at once
  static constexpr int ROW_A = plan.block_k + LANES;  // from row to row: no multiple of a page
  static constexpr int STEP_A = plan.rows_a ? ROW_A : plan.block_k;

  // Of B that is packed before.
  static constexpr i64 KEPT_PANEL = i64(STEPS) * WIDTH * STEP_FLOATS_B;
  static constexpr i64 kept_floats =
      plan.kept_b ? i64(STEPS) * round_lanes(N) * STEP_FLOATS_B : 0;

  // Scratch: packed A, packed panels of B, unfinished sums.
  static constexpr i64 floats_a = plan.kind == OUTER || tiled ? i64(plan.block_strips) * plan.rows *
                                                            STEP_A * STEP_FLOATS_A + LANES
                                  : plan.kind == DOTS ? i64(M) * K
                                                      : i64(round_lanes(M)) * K;
  static constexpr i64 at_b = plan.pack_a ? (floats_a + LANES - 1) / LANES * LANES : 0;
  static constexpr i64 at_sums = at_b + (plan.pack_b ? PANEL * (one_block ? 1 : PANELS) : 0);
  static constexpr i64 scratch = at_sums + (plan.block_k < STEPS ? PANELS * STRIPS * TILE : 0);
};

// A product, and `scratch`: the floats that each thread needs for it. A single column is computed
// as a single row of the transposed product.
template <int M, int N, int K, int AM, int AK, int BK, int BN, bool A16 = false, bool B16 = false,
          bool BF16 = false, bool KEPT_B = false, Triangle TRIANGLE = WHOLE>
struct Gemm : GemmParts<M, N, K, AM, AK, BK, BN, A16, B16, BF16, KEPT_B, TRIANGLE> {
  static constexpr bool column = false;
};
template <int M, int K, int AM, int AK, int BK, int BN, bool A16, bool B16, bool BF16>
struct Gemm<M, 1, K, AM, AK, BK, BN, A16, B16, BF16, false, WHOLE>
    : GemmParts<1, M, K, 1, BK, AK, AM, B16, A16, BF16, false, WHOLE> {
  static constexpr bool column = true;
};
