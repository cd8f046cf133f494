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
// All of them are chosen, with their tile sizes, by the estimates of gemm_plan.h. No sum depends on
// how many threads share the work. K must be at least 1.

#pragma once

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
    // Weights that were packed before come from afar; those that few rows read are read again soon.
    // Behind the last panel lies the first of the next product.
    if constexpr (G::plan.kept_b && G::M > FEW_ROWS) {
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
