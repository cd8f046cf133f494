// Matrix product of compile-time shape: C[m, n] = sum over k of A[m*AM + k*AK] * B[k*BK + n*BN].
//
// C itself is never stored here: a tile of finished sums lies in L1, and the caller's epilogue
// `ep(m, n0, count, row)` takes it from there, row by row (row[j] is C[m, n0 + j]; every element
// comes exactly once, `count` is a compile-time constant in every place that calls it).
//
//   OUTER   the usual case: MR rows times NV vectors of columns in registers, one column of A
//           times one row of B per step. B is read in place, or packed panel by panel:
//
//                         B  |..NV vectors..|      panel = [K][NV * LANES], packed when the rows
//               A  ┌──┐   ───┼──────────────┤      of B are not contiguous or too far apart
//             MR { │..│      │ sums in regs │      strip = [K][MR], A packed when big and its
//                  └──┘      └──────────────┘      columns are contiguous instead of its rows
//
//   DOTS    few rows, B transposed: packing B would cost more than the product. Vectors run along
//           k in A and B, their lanes are added up at the end.
//   TURNED  about a vector of rows, B transposed: lanes are rows of C (A is packed, it is small),
//           numbers of B are spread; the square of sums is transposed in registers at the end.
//   TILES   the CPU has a unit for matrices (tiles.h): both operands are packed in tiles of
//           bfloat16, floats as three of them.
//
// Operands of 16 bits (A16, B16; any type that `widened` and `load` know) become floats where they
// are packed: A always is, row by row if its rows are contiguous; B is, or is widened at each load.
// If both are bfloat16 (BF16), OUTER may take them in words of two instead (pairs.h): then a step
// along k is a word.
//
// An operand B that is the same in many runs is packed apart, all of it (KEPT_B): then its panels cost
// nothing any more, and OUTER reads them from there: [panel][K][NV * LANES].
//
// Of a causal product (TRIANGLE) only a half is computed, by OUTER, up to whole tiles:
//
//   RESULT      nobody looks at C above the diagonal: the epilogue gets a null pointer there
//   LEFT_LOWER  A is zero above its diagonal: sums end there
//   LEFT_UPPER  A is zero below its diagonal: sums begin there
//
// All of them are chosen, with their tile sizes, by the estimates of `gemm_plan`. No sum depends on
// how many threads share the work. K must be at least 1.

#pragma once

// ---------------------------------------------------------------------------------------- plan

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

// --------------------------------------------------------------------------------------- packing

// So many steps ahead rows of B are fetched that lie far apart.
constexpr int AHEAD = 32;

// to[k][width] = the columns n < count of B, zeros beyond. Where k is contiguous, squares of
// numbers are transposed in registers.
template <Contiguous C, class Number>
SHARED void pack_panel(const Number* B, i64 BK, i64 BN, float* to, int K, int width, int count) {
  if constexpr (C == ALONG_N) {
    for (int k = 0; k < K; k++, B += BK, to += width) {
      int j = 0;
      ROLLED for (; j + LANES <= count; j += LANES) {
        __builtin_prefetch(B + j + AHEAD * BK, 0, 2);
        store(to + j, load(B + j));
      }
      if (j < count) store(to + j, load_first(B + j, count - j));
    }
  } else if constexpr (C == ALONG_K) {
    for (int j = 0; j < count; j += LANES) {
      const int columns = smaller(LANES, count - j);
      for (int k = 0; k < K; k += LANES) {
        const int steps = smaller(LANES, K - k);
        const Number* from = B + i64(j) * BN + k;
        float* out = to + i64(k) * width + j;
        vec square[LANES];
        if (steps == LANES && columns == LANES) {
          UNROLLED for (int i = 0; i < LANES; i++) square[i] = load(from + i * BN);
        } else {
          ROLLED for (int i = 0; i < LANES; i++)
            square[i] = i < columns ? load_first(from + i * BN, steps) : vec{};
        }
        transpose(square);
        if (steps == LANES) {
          UNROLLED for (int i = 0; i < LANES; i++) store(out + i * width, square[i]);
        } else {
          ROLLED for (int i = 0; i < steps; i++) store(out + i * width, square[i]);
        }
      }
    }
  } else {
    for (int k = 0; k < K; k++)
      for (int j = 0; j < width; j++)
        to[i64(k) * width + j] = j < count ? widened(B[k * BK + j * BN]) : 0;
  }
}

// to[strip][k][ROWS] = the strips of `rows` rows of A, a few k at a time, so that the lines they
// share stay in L1: often they are a page apart, and a set of it has room for eight of those.
template <int ROWS, bool CONTIGUOUS, class Number>
SHARED void pack_strips(const Number* A, i64 AM, i64 AK, float* to, int rows, int K) {
  constexpr int FEW = 8;
  for (int k0 = 0; k0 < K; k0 += FEW)
    for (int s = 0; s * ROWS < rows; s++) {
      const int steps = smaller(FEW, K - k0), here = smaller(ROWS, rows - s * ROWS);
      const Number* from = A + s * ROWS * AM + k0 * AK;
      float* out = to + (i64(s) * K + k0) * ROWS;
      ROLLED for (int k = 0; k < steps; k++, from += AK, out += ROWS) {
        if (CONTIGUOUS && here == ROWS && sizeof(Number) == 4) memcpy(out, from, 4 * ROWS);
        else if (CONTIGUOUS && here == ROWS)
          UNROLLED for (int i = 0; i < ROWS; i++) out[i] = widened(from[i]);
        else for (int i = 0; i < here; i++) out[i] = widened(from[i * AM]);
      }
    }
}

// to[row][K, and some] = `rows` rows of A, K contiguous numbers each.
template <class Number>
SHARED void pack_rows(const Number* A, i64 AM, float* to, i64 step, int rows, int K) {
  ROLLED for (int i = 0; i < rows; i++, A += AM, to += step) {
    int k = 0;
    ROLLED for (; k + LANES <= K; k += LANES) store(to + k, load(A + k));
    if (k < K) store(to + k, load_first(A + k, K - k));
  }
}

// ------------------------------------------------------------------------------------------ tiles

// What an epilogue will write (or read): row m of each array starts at first + m * row. And a part
// of the next panel, `steps` steps along k. A tile fetches its part while it multiplies, a row or step
// at a time: all at once would keep its own operands waiting.
struct Ahead {
  static constexpr int MOST = 4;
  i64 row = 0;
  int arrays = 0;
  const float* first[MOST] = {};
  int steps = 0;
  const float* panel = nullptr;
};

// The arrays from a place on; none if they are not wanted yet.
INLINE Ahead from_place(const Ahead& ahead, i64 place, bool wanted) {
  Ahead here{ahead.row, wanted ? ahead.arrays : 0};
  for (int i = 0; i < here.arrays; i++) here.first[i] = ahead.first[i] + place;
  return here;
}

template <int VECTORS> INLINE void fetch_row(const Ahead& ahead, int m) {
  for (int i = 0; i < ahead.arrays; i++)
    UNROLLED for (int j = 0; j < VECTORS; j++)
      __builtin_prefetch(ahead.first[i] + m * ahead.row + j * LANES, 1);
}

template <int VECTORS> INLINE void fetch_step(const Ahead& ahead, int k) {
  UNROLLED for (int j = 0; j < VECTORS; j++)
    __builtin_prefetch(ahead.panel + (i64(k) * VECTORS + j) * LANES, 0, 2);
}

// Additions in a row before the sum is put aside: a longer chain would lose digits.
constexpr int LONGEST_SUM = 512;

// Sums that are handed over from registers.
constexpr int SHORT_SUM = 32;

// The sums of MR rows and NV vectors of columns. Few sums would wait for each other: then U
// successive k have sums of their own. MASKED: only `last` lanes of the last vector exist.
// `before` holds the sums of earlier k, if there are any. Strides are arguments, so that all
// products share the few kinds of tiles; only many rows (AM != 0) need theirs known, for want of
// registers to point at them.
template <int MR, int NV, int AM, bool MASKED, bool PAIRS, class Number>
SHARED void outer_tile(const float* A, i64 a_row, i64 AK, const Number* B, i64 BK, int K,
                       const float* before, float* tile, int last, const Ahead& ahead) {
  constexpr int U = MR * NV >= 8 ? 1 : MR * NV >= 4 ? 2 : 4;
  vec sums[U][MR][NV];
  const i64 row = AM ? AM : a_row;
  i64 at = 0;
  auto step = [&](vec(&into)[MR][NV]) INLINE_CALL {
    vec b[NV];
    UNROLLED for (int j = 0; j < NV; j++)
      b[j] = MASKED && j == NV - 1 ? load_first(B + LANES * j, last) : load(B + LANES * j);
    UNROLLED for (int i = 0; i < MR; i++) {
      if constexpr (PAIRS) {
        const vec a = spread_pair(A + i * row + at);
        UNROLLED for (int j = 0; j < NV; j++) into[i][j] = add_pairs(into[i][j], a, b[j]);
      } else {
        const vec a = spread((A + i * row)[at]);
        UNROLLED for (int j = 0; j < NV; j++) into[i][j] += a * b[j];
      }
    }
    at += AK;
    B += BK;
  };
  constexpr int LONGEST = LONGEST_SUM / (PAIRS ? 2 : 1);
  const int rows = ahead.arrays && K >= 64 ? MR : 0, fetches = rows > ahead.steps ? rows : ahead.steps;
  const int piece = fetches ? pieces(K, fetches) : LONGEST;
  int k = 0, fetched = 0;
  do {
    const int until = smaller(K, k + LONGEST);
    UNROLLED for (int u = 0; u < U; u++)
      UNROLLED for (int i = 0; i < MR; i++)
        UNROLLED for (int j = 0; j < NV; j++) sums[u][i][j] = vec{};
    if constexpr (U == 1) {
      while (k < until) {
        if (fetched < rows) fetch_row<NV>(ahead, fetched);
        if (fetched < ahead.steps) fetch_step<NV>(ahead, fetched);
        fetched++;
        const int end = smaller(until, k + piece);
        ROLLED for (; k < end; k++) step(sums[0]);
      }
    } else {
      ROLLED for (; k + U <= until; k += U) {
        UNROLLED for (int u = 0; u < U; u++) step(sums[u]);
      }
      ROLLED for (; k < until; k++) step(sums[0]);
    }
    UNROLLED for (int i = 0; i < MR; i++)
      UNROLLED for (int j = 0; j < NV; j++) {
        vec sum = sums[0][i][j];
        UNROLLED for (int u = 1; u < U; u++) sum += sums[u][i][j];
        if (before) sum += load(before + (i * NV + j) * LANES);
        store(tile + (i * NV + j) * LANES, sum);
      }
    before = tile;
  } while (k < K);
}

// The same for a short sum in one go, where storing a tile to read it again would take as long as a
// quarter of the sum: take(i, row) gets each row as its sums leave the registers.
template <int MR, int NV, int AM, bool MASKED, class Number, class Take>
INLINE void outer_short(const float* A, i64 a_row, i64 AK, const Number* B, i64 BK, int K, int last,
                        Take take) {
  vec sums[MR][NV];
  const i64 row = AM ? AM : a_row;
  UNROLLED for (int i = 0; i < MR; i++)
    UNROLLED for (int j = 0; j < NV; j++) sums[i][j] = vec{};
  i64 at = 0;
  ROLLED for (int k = 0; k < K; k++, at += AK, B += BK) {
    vec b[NV];
    UNROLLED for (int j = 0; j < NV; j++)
      b[j] = MASKED && j == NV - 1 ? load_first(B + LANES * j, last) : load(B + LANES * j);
    UNROLLED for (int i = 0; i < MR; i++) {
      const vec a = spread((A + i * row)[at]);
      UNROLLED for (int j = 0; j < NV; j++) sums[i][j] += a * b[j];
    }
  }
  UNROLLED for (int i = 0; i < MR; i++) {
    alignas(64) float line[NV * LANES];
    UNROLLED for (int j = 0; j < NV; j++) store(line + j * LANES, sums[i][j]);
    take(i, line);
  }
}

// LANES columns of C (rows of transposed B) times LANES rows, stored row by row of C. The first
// `lanes` of these rows and the first COLUMNS of these columns exist.
template <int BN, int COLUMNS, class Number>
SHARED void turned_tile(const float* A, i64 AK, int lanes, const Number* B, i64 BK, int K,
                        float* tile) {
  vec sums[LANES];
  UNROLLED for (int j = 0; j < LANES; j++) sums[j] = vec{};
  ROLLED for (int k = 0; k < K; k++) {
    const vec a = load_first(A, lanes);
    UNROLLED for (int j = 0; j < COLUMNS; j++) sums[j] += a * spread(widened(B[i64(j) * BN]));
    A += AK;
    B += BK;
  }
  transpose(sums);
  UNROLLED for (int i = 0; i < LANES; i++) store(tile + i * LANES, sums[i]);
}

// MR x NC dot products along k, both sides contiguous; rows of the tile are `width` apart.
template <int MR, int NC, class Left, class Right>
SHARED void dots_tile(const Left* A, i64 AM, const Right* B, i64 BN, int K, float* tile,
                      int width) {
  vec sums[MR][NC];
  UNROLLED for (int i = 0; i < MR; i++)
    UNROLLED for (int j = 0; j < NC; j++) sums[i][j] = vec{};
  auto step = [&](auto&& get, i64 k) INLINE_CALL {
    vec a[MR];
    UNROLLED for (int i = 0; i < MR; i++) a[i] = get((A + i * AM) + k);
    UNROLLED for (int j = 0; j < NC; j++) {
      const vec b = get((B + j * BN) + k);
      UNROLLED for (int i = 0; i < MR; i++) sums[i][j] += a[i] * b;
    }
  };
  const int rest = K % LANES;
  ROLLED for (i64 k = 0; k < K - rest; k += LANES)
    step([](auto* from) INLINE_CALL { return load(from); }, k);
  if (rest) step([&](auto* from) INLINE_CALL { return load_first(from, rest); }, K - rest);
  UNROLLED for (int i = 0; i < MR; i++) {
    const vec row = lane_sums<NC>(sums[i]);
    UNROLLED for (int j = 0; j < NC; j++) tile[i * width + j] = row[j];
  }
}

// ------------------------------------------------------------------------------------------ loops

// Which tiles are a thread's: a part of the panels, or of the strips where that divides better.
struct TileShare {
  int panel, panels, strip, strips;
};

INLINE TileShare tile_share(int panels, int strips, int t, int T) {
  if (T == 1) return {0, panels, 0, strips};
  const i64 by_panels = i64(pieces(panels, T)) * strips;  // tiles of the busiest thread
  const i64 by_strips = i64(pieces(strips, T)) * panels;
  if (by_strips < by_panels)
    return {0, panels, int(share(strips, t, T)), int(share(strips, t + 1, T))};
  return {int(share(panels, t, T)), int(share(panels, t + 1, T)), 0, strips};
}

// One of two pointers, of types that may differ.
template <bool FIRST, class A, class B> INLINE auto either(A* a, B* b) {
  if constexpr (FIRST) return a;
  else return b;
}

// What a thread does next in OUTER: some strips over some k, with one panel after the other.
template <class Left, class Right> struct OuterBlock {
  const Left* A;
  const Right* B;
  float* scratch;
  int k0, steps, strip, strips;
  bool pack_b;  // the panels have not been packed for these k yet
  Ahead ahead;
};

// How many numbers deep a block is.
template <class G, class Left, class Right> INLINE int numbers_of(OuterBlock<Left, Right> block) {
  return smaller(block.steps * G::TERMS, G::K - block.k0 * G::TERMS);
}

// The strips of a block with the panel whose COUNT columns start at panel p.
template <class G, int COUNT, class Left, class Right, class EP>
INLINE void outer_panel(OuterBlock<Left, Right> block, int p, EP ep) {
  constexpr int MR = G::plan.rows, NV = pieces(COUNT, LANES), REST = G::M % MR;
  constexpr bool MASKED = !G::panels_b && COUNT % LANES != 0;
  constexpr bool ROWS_A = G::plan.rows_a, PAIRS = G::plan.pairs;
  constexpr int ROW = ROWS_A ? G::ROW_A : G::plan.pack_a ? 1 : G::AM / G::TERMS;
  constexpr int LAST = COUNT % LANES, AM = MR > 8 ? ROW : 0;
  constexpr i64 STEP = ROWS_A ? 1 : G::plan.pack_a ? MR : G::AK;
  constexpr i64 B_STEP = G::panels_b ? NV * LANES : G::BK;
  alignas(64) float finished[MR * NV * LANES];
  const int n0 = p * G::WIDTH, k0 = block.k0;
  const i64 depth = i64(k0) * G::TERMS;
  const Right* lies = G::plan.kept_b ? block.B + p * G::KEPT_PANEL + i64(k0) * NV * LANES
                                     : block.B + i64(n0) * G::BN + depth * G::BK;
  float* packed = block.scratch + G::at_b + (G::one_block ? 0 : p * G::PANEL);
  constexpr Contiguous SIDE = contiguous(G::BK, G::BN);
  if constexpr (G::plan.pack_b)
    if (block.pack_b) {
      if constexpr (PAIRS)
        pack_pairs<SIDE>(lies, G::BK, G::BN, packed, numbers_of<G>(block), NV * LANES, COUNT);
      else
        pack_panel<SIDE>(lies, G::BK, G::BN, packed, block.steps, NV * LANES, COUNT);
    }
  const auto* panel = either<G::plan.pack_b>((const float*)packed, lies);
  for (int s = block.strip; s < block.strips; s++) {
    const int m = s * MR;
    const i64 here = i64(s - block.strip) * MR * (ROWS_A ? G::ROW_A : block.steps);
    const Left* row = block.A + i64(m) * G::AM + depth * G::AK;
    const float* a = G::plan.pack_a ? block.scratch + here : (const float*)row;
    float *sums = nullptr, *tile = finished;
    if constexpr (G::plan.block_k < G::STEPS) {
      float* waiting = block.scratch + G::at_sums + (i64(p) * G::STRIPS + s) * G::TILE;
      sums = k0 == 0 ? nullptr : waiting;
      tile = k0 + block.steps == G::STEPS ? finished : waiting;
    }
    const int rows = REST == 0 ? MR : smaller(MR, G::M - m);
    constexpr bool IN_ONE_GO = G::triangle == WHOLE && G::plan.block_k == G::STEPS;
    if constexpr (MR * NV >= 8 && G::K <= SHORT_SUM && IN_ONE_GO && !PAIRS) {
      if (rows == MR) {
        auto take = [&](int i, const float* line) INLINE_CALL { ep(m + i, n0, COUNT, line); };
        outer_short<MR, NV, AM, MASKED>(a, ROW, STEP, panel, B_STEP, G::K, LAST, take);
        continue;
      }
    }
    if constexpr (G::triangle == RESULT)
      if (n0 >= m + MR) {
        ROLLED for (int i = 0; i < rows; i++) ep(m + i, n0, COUNT, nullptr);
        continue;
      }
    const int k1 = G::triangle == LEFT_UPPER ? smaller(block.steps, m) : 0;
    const int k2 = G::triangle == LEFT_LOWER ? smaller(block.steps, m + MR) : block.steps;
    Ahead ahead = from_place(block.ahead, m * block.ahead.row + n0, tile == finished);
    if constexpr (G::plan.kept_b)  // weights that were packed before come from afar
      if (n0 + COUNT < G::N) {
        const int strips = block.strips - block.strip, at = s - block.strip;
        const i64 from = share(block.steps, at, strips);
        ahead.steps = share(block.steps, at + 1, strips) - from;
        ahead.panel = panel + G::KEPT_PANEL + from * NV * LANES;
      }
    if (rows == MR) {
      outer_tile<MR, NV, AM, MASKED, PAIRS>(a + k1 * STEP, ROW, STEP, panel + k1 * B_STEP, B_STEP,
                                            k2 - k1, sums, tile, LAST, ahead);
    } else if constexpr (REST != 0) {
      outer_tile<REST, NV, AM, MASKED, PAIRS>(a + k1 * STEP, ROW, STEP, panel + k1 * B_STEP, B_STEP,
                                              k2 - k1, sums, tile, LAST, ahead);
    }
    if (tile == finished)
      ROLLED for (int i = 0; i < rows; i++) ep(m + i, n0, COUNT, tile + i * NV * LANES);
  }
}

template <class G, class Left, class Right, class EP>
INLINE void gemm_outer(const Left* A, const Right* B, float* scratch, int t, int T, EP ep,
                       Ahead ahead) {
  constexpr int MR = G::plan.rows, FULL = G::N / G::WIDTH, LEFT = G::N % G::WIDTH;
  const TileShare mine = tile_share(G::PANELS, G::STRIPS, t, T);
  for (int k0 = 0; k0 < G::STEPS; k0 += G::plan.block_k) {
    const int steps = smaller(G::plan.block_k, G::STEPS - k0);
    for (int s = mine.strip; s < mine.strips; s += G::plan.block_strips) {
      const int end = smaller(mine.strips, s + G::plan.block_strips);
      const OuterBlock<Left, Right> block{A, B, scratch, k0, steps, s, end, s == mine.strip, ahead};
      const Left* from = A + i64(s) * MR * G::AM + i64(k0) * G::TERMS * G::AK;
      const int rows = smaller(end * MR, G::M) - s * MR;
      if constexpr (G::plan.pairs && G::plan.rows_a)
        pack_pair_rows(from, G::AM, scratch, G::ROW_A, rows, numbers_of<G>(block));
      else if constexpr (G::plan.pairs && G::plan.pack_a)
        pack_pair_strips<MR>(from, G::AM, G::AK, scratch, rows, numbers_of<G>(block));
      else if constexpr (G::plan.rows_a)
        pack_rows(from, G::AM, scratch, G::ROW_A, rows, steps);
      else if constexpr (G::plan.pack_a)
        pack_strips<MR, G::AM == 1>(from, G::AM, G::AK, scratch, rows, steps);
      if constexpr (FULL > 0)
        for (int p = mine.panel; p < smaller(mine.panels, FULL); p++)
          outer_panel<G, G::WIDTH>(block, p, ep);
      if constexpr (LEFT != 0)
        if (mine.panels == G::PANELS) outer_panel<G, LEFT>(block, FULL, ep);
    }
  }
}

// COUNT columns in groups of NC dot products, what is left over in groups of half as many.
template <class G, int MR, int NC, int COUNT, class Left, class Right>
INLINE void dots_columns(const Left* A, i64 AM, const Right* B, float* tile, int width) {
  constexpr int WHOLE = COUNT / NC * NC;
  ROLLED for (int j = 0; j < WHOLE; j += NC)
    dots_tile<MR, NC>(A, AM, B + i64(j) * G::BN, G::BN, G::K, tile + j, width);
  if constexpr (WHOLE != COUNT)
    dots_columns<G, MR, NC / 2, COUNT - WHOLE>(A, AM, B + i64(WHOLE) * G::BN, tile + WHOLE, width);
}

// Columns [n0, n0 + COUNT) of `rows` rows (all of a strip or the last ones) by dot products.
template <class G, int COUNT, class Left, class Right, class EP>
INLINE void dots_block(const Left* A, const Right* B, int m, int n0, EP ep) {
  constexpr int MR = G::plan.rows, REST = G::M % MR, WIDTH = round_lanes(COUNT);
  constexpr i64 AM = G::plan.pack_a ? G::K : G::AM;
  alignas(64) float tile[MR * WIDTH];
  const Left* a = A + m * AM;
  const Right* b = B + i64(n0) * G::BN;
  const int rows = REST == 0 ? MR : smaller(MR, G::M - m);
  if (rows == MR) dots_columns<G, MR, G::plan.vectors, COUNT>(a, AM, b, tile, WIDTH);
  else if constexpr (REST != 0)
    dots_columns<G, REST, G::plan.vectors, COUNT>(a, AM, b, tile, WIDTH);
  ROLLED for (int i = 0; i < rows; i++) ep(m + i, n0, COUNT, tile + i * WIDTH);
}

template <class G, class Left, class Right, class EP>
INLINE void gemm_dots(const Left* A, const Right* B, float* scratch, int t, int T, EP ep) {
  constexpr int WIDTH = smaller(G::N, 4 * LANES), FULL = G::N / WIDTH, LEFT = G::N % WIDTH;
  constexpr int BLOCKS = FULL + (LEFT != 0);
  if constexpr (G::plan.pack_a)
    for (int m = 0; m < G::M; m++)
      for (int k = 0; k < G::K; k++)
        scratch[i64(m) * G::K + k] = widened(A[i64(m) * G::AM + i64(k) * G::AK]);
  const auto* a = either<G::plan.pack_a>((const float*)scratch, A);
  // One flat list of blocks and strips, so that every thread count divides it well; the strips
  // of one block of B come one after the other.
  const int jobs = BLOCKS * G::STRIPS, end = int(share(jobs, t + 1, T));
  for (int job = int(share(jobs, t, T)); job < end; job++) {
    const int n0 = job / G::STRIPS * WIDTH, m = job % G::STRIPS * G::plan.rows;
    if (LEFT == 0 || n0 < FULL * WIDTH) dots_block<G, WIDTH>(a, B, m, n0, ep);
    else if constexpr (LEFT != 0) dots_block<G, LEFT>(a, B, m, n0, ep);
  }
}

// One square of C, from row m and column n0 on.
template <class G, int COLUMNS, class Number, class EP>
INLINE void turned_square(const float* A, i64 AK, const Number* B, int m, int n0, EP ep) {
  alignas(64) float tile[LANES * LANES];
  const int rows = smaller(LANES, G::M - m);
  turned_tile<G::BN, COLUMNS>(A + m, AK, rows, B + i64(n0) * G::BN, G::BK, G::K, tile);
  ROLLED for (int i = 0; i < rows; i++) ep(m + i, n0, COLUMNS, tile + i * LANES);
}

template <class G, class Left, class Right, class EP>
INLINE void gemm_turned(const Left* A, const Right* B, float* scratch, int t, int T, EP ep) {
  constexpr int FULL = G::N / LANES, LEFT = G::N % LANES, COLUMNS = FULL + (LEFT != 0);
  constexpr int ROWS = round_lanes(G::M);
  constexpr i64 STEP = G::plan.pack_a ? ROWS : G::AK;
  if constexpr (G::plan.pack_a)
    pack_panel<contiguous(G::AK, G::AM)>(A, G::AK, G::AM, scratch, G::K, ROWS, G::M);
  const float* a = either<G::plan.pack_a>((const float*)scratch, A);
  const int jobs = COLUMNS * G::STRIPS, end = int(share(jobs, t + 1, T));
  for (int job = int(share(jobs, t, T)); job < end; job++) {
    const int n0 = job / G::STRIPS * LANES, m = job % G::STRIPS * LANES;
    if (LEFT == 0 || n0 < FULL * LANES) turned_square<G, LANES>(a, STEP, B, m, n0, ep);
    else if constexpr (LEFT != 0) turned_square<G, LEFT>(a, STEP, B, m, n0, ep);
  }
}

// ---------------------------------------------------------------------------------------- kept B

// All panels of B, as `outer_panel` reads them; nothing if the plan reads B where it lies.
template <class G, int COUNT, class Right>
INLINE void pack_kept_panel(const Right* B, float* to, int p) {
  constexpr Contiguous SIDE = contiguous(G::BK, G::BN);
  constexpr int WIDTH = round_lanes(COUNT);
  B += i64(p) * G::WIDTH * G::BN;
  to += p * G::KEPT_PANEL;
  if constexpr (G::plan.pairs) pack_pairs<SIDE>(B, G::BK, G::BN, to, G::K, WIDTH, COUNT);
  else pack_panel<SIDE>(B, G::BK, G::BN, to, G::K, WIDTH, COUNT);
}

template <class G, class Right>
INLINE void pack_kept_tiles(const Right* B, float* to, int t, int T);  // tiles.h

template <class G, class Right>
INLINE void gemm_pack(const Right* B, float* to, int t, int T) {
  if constexpr (G::tiled) {
    pack_kept_tiles<G>(B, to, t, T);
  } else if constexpr (G::plan.kept_b) {
    constexpr int FULL = G::N / G::WIDTH, LEFT = G::N % G::WIDTH;
    const int end = int(share(G::PANELS, t + 1, T));
    for (int p = int(share(G::PANELS, t, T)); p < end; p++) {
      if constexpr (FULL > 0)
        if (p < FULL) pack_kept_panel<G, G::WIDTH>(B, to, p);
      if constexpr (LEFT != 0)
        if (p == FULL) pack_kept_panel<G, LEFT>(B, to, p);
    }
  }
}

// ------------------------------------------------------------------------------------ entry points

template <class G, class Left, class Right, class EP>
INLINE void gemm_tiles(const Left* A, const Right* B, float* scratch, int t, int T, EP ep,
                       Ahead ahead);  // tiles.h

template <class G, class Left, class Right, class EP>
INLINE void gemm_rows(const Left* A, const Right* B, float* scratch, int t, int T, EP ep,
                      Ahead ahead) {
  if constexpr (G::plan.kind == OUTER) gemm_outer<G>(A, B, scratch, t, T, ep, ahead);
  else if constexpr (G::tiled) gemm_tiles<G>(A, B, scratch, t, T, ep, ahead);
  else if constexpr (G::plan.kind == DOTS) gemm_dots<G>(A, B, scratch, t, T, ep);
  else gemm_turned<G>(A, B, scratch, t, T, ep);
}

// `ahead`: the arrays that the epilogue writes, if their rows are contiguous along n. Worth naming
// for results that are not in L2 any more.
template <class G, class Left, class Right, class EP>
INLINE void gemm(const Left* A, const Right* B, float* scratch, int t, int T, EP ep,
                 Ahead ahead = {}) {
  if constexpr (G::column) {
    gemm_rows<G>(B, A, scratch, t, T, [&](int, int m0, int count, const float* row) INLINE_CALL {
      LANEWISE for (int i = 0; i < count; i++) ep(m0 + i, 0, 1, row + i);
    }, Ahead{});
  } else {
    gemm_rows<G>(A, B, scratch, t, T, ep, ahead);
  }
}

// The same with a B that `gemm_pack` has packed, if the plan wants it so.
template <class G, class Left, class Right, class EP>
INLINE void gemm_kept(const Left* A, const Right* B, const float* packed, float* scratch, int t,
                      int T, EP ep, Ahead ahead = {}) {
  gemm_rows<G>(A, either<G::plan.kept_b>(packed, B), scratch, t, T, ep, ahead);
}

// BATCH products whose operands lie ABATCH and BBATCH floats apart; ep(batch, m, n0, count, row).
// Threads share the batch when it divides well, else the tiles of every product.
template <class G, int BATCH, i64 ABATCH, i64 BBATCH, class EP>
INLINE void gemm_batched(const float* A, const float* B, float* scratch, int t, int T, EP ep) {
  const bool by_batch = BATCH % T == 0 || BATCH >= 4 * T;
  const int first = by_batch ? int(share(BATCH, t, T)) : 0;
  const int end = by_batch ? int(share(BATCH, t + 1, T)) : BATCH;
  if (by_batch) t = 0, T = 1;
  for (int b = first; b < end; b++)
    gemm<G>(A + b * ABATCH, B + b * BBATCH, scratch, t, T,
            [&](int m, int n0, int count, const float* row)
                INLINE_CALL { ep(b, m, n0, count, row); });
}
