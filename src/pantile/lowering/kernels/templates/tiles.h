// Products by the unit for matrices (AMX): eight registers of 16 rows of 64 bytes, and one
// instruction that multiplies 16 rows of 32 bfloat16 with 32 rows of 16 and adds to 16 x 16 floats.
//
//             B  ┌────┬────┐  a tile = [16 words][16 columns]
//                │ 6  │ 7  │
//          A     ├────┼────┤            0 .. 3   sums of 32 x 32 (or 16 x 64) of C
//         ┌────┐ │ 0  │ 1  │            4, 5     tiles of A: [16 rows][16 words]
//         │ 4  │ ├────┼────┤            6, 7     tiles of B
//         ├────┤ │ 2  │ 3  │
//         │ 5  │ └────┴────┘            a word is two numbers of k
//         └────┘
//
// A float is the sum of three bfloat16 without any loss (8 + 8 + 8 digits), its planes:
//
//   x = h + m + l         h = nearest bfloat16 of x,  m = first digits of x - h,  l = the rest
//   x * y ~ hh + (hm + mh) + (hl + lh + mm)           what is left out is below 2^-24 of it
//
// So a product of floats is six of bfloat16, and still faster than in the vector unit if it is large.
// An instruction adds 32 products before it rounds the sum, and what was summed is put aside every
// TILES_DEEP steps: the result is nearer to that of float64 than a product in float (half its error). Numbers below
// 2^-126 count as zero, and an infinite operand gives NaN. A float16 is two bfloat16.
//
// If both operands are bfloat16 there is one plane, A is read where it lies if it can be, and words
// are neighbours (k, k + 1). Else words are (k, k + 16), the same way on both sides.

#pragma once

constexpr int TILE_FLOATS = 256;  // of the memory of a tile: 16 rows of 64 bytes

template <int... I> struct Ints {};
template <int N, int... I> struct Below : Below<N - 1, N - 1, I...> {};
template <int... I> struct Below<0, I...> : Ints<I...> {};
template <class F, int... I> INLINE void for_each(Ints<I...>, F f) {
  (f.template operator()<I>(), ...);
}

// ------------------------------------------------------------------------------------ the unit

#if !defined(PANTILE_TILES_IN_SOFTWARE)

struct alignas(64) TileShapes {
  u8 palette = 1, first = 0, unused[14] = {};
  unsigned short bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  u8 rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static const TileShapes whole_tiles;

INLINE void tiles_begin() { asm volatile("ldtilecfg %0" ::"m"(whole_tiles)); }
INLINE void tiles_end() { asm volatile("tilerelease"); }
template <int R> INLINE void tile_zero() { asm volatile("tilezero %%tmm%c0" ::"i"(R)); }
template <int R> INLINE void tile_load(const void* from, i64 row) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(R), "r"(from), "r"(row) : "memory");
}
template <int R> INLINE void tile_store(void* to, i64 row) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(R), "r"(to), "r"(row) : "memory");
}
template <int C, int A, int B> INLINE void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

#else  // The same in C++: for tests on other CPUs.

static __thread u32 tile_words[8][16][16];
static __thread bool tiles_begun;
INLINE float tile_number(u32 bits) { return __builtin_bit_cast(float, bits << 16); }
INLINE void tiles_begin() { tiles_begun = true; }
INLINE void tiles_end() { tiles_begun = false; }
template <int R> INLINE void tile_zero() { memset(tile_words[R], 0, 1024); }
template <int R> INLINE void tile_load(const void* from, i64 row) {
  for (int i = 0; i < 16; i++) memcpy(tile_words[R][i], (const char*)from + i * row, 64);
}
template <int R> INLINE void tile_store(void* to, i64 row) {
  for (int i = 0; i < 16; i++) memcpy((char*)to + i * row, tile_words[R][i], 64);
}
template <int C, int A, int B> INLINE void tile_multiply() {
  if (!tiles_begun) __builtin_trap();
  for (int i = 0; i < 16; i++) {
    float even[16] = {}, odd[16] = {};  // the first and the second numbers of words
    for (int w = 0; w < 16; w++)
      for (int j = 0; j < 16; j++) {
        const u32 a = tile_words[A][i][w], b = tile_words[B][w][j];
        even[j] = __builtin_fmaf(tile_number(a), tile_number(b), even[j]);
        odd[j] = __builtin_fmaf(tile_number(a >> 16), tile_number(b >> 16), odd[j]);
      }
    for (int j = 0; j < 16; j++) (float&)tile_words[C][i][j] += even[j] + odd[j];
  }
}

#endif

// ------------------------------------------------------------------------------------- packing

typedef u32 words __attribute__((vector_size(64)));

// The planes of two vectors as words, `plane` floats apart. The first plane is rounded, half away
// from zero; the next ones are cut off, so that the last one holds what is left.
template <int PLANES> INLINE void store_planes(vec x, vec y, float* to, i64 plane) {
  UNROLLED for (int p = 0; p < PLANES; p++) {
    const u32 half = p == 0 ? 0x8000u : 0u;
    const words left = ((words)x + half) & 0xffff0000u, right = ((words)y + half) & 0xffff0000u;
    store(to + p * plane, (vec)(left >> 16 | right));
    x -= (vec)left;
    y -= (vec)right;
  }
}

// 16 x 16 numbers, of which `rows` and `lanes` exist, zeros elsewhere.
template <Contiguous C, class Number>
INLINE void load_square(const Number* from, i64 row, i64 lane, i64 ahead, int rows, int lanes,
                        float (&to)[16][16]) {
  if constexpr (C == ALONG_K) {
    vec square[16];
    if (rows == 16 && lanes == 16) {
      UNROLLED for (int j = 0; j < 16; j++) {
        square[j] = load(from + j * lane);
        __builtin_prefetch(from + j * lane + 2 * ahead, 0, 2);
      }
    } else {
      ROLLED for (int j = 0; j < 16; j++)
        square[j] = j < lanes && rows > 0 ? load_first(from + j * lane, smaller(16, rows)) : vec{};
    }
    transpose(square);
    UNROLLED for (int i = 0; i < 16; i++) store(to[i], square[i]);
  } else {
    for (int i = 0; i < 16; i++)
      for (int j = 0; j < 16; j++)
        to[i][j] = i < rows && j < lanes ? widened(from[i * row + j * lane]) : 0;
  }
}

// Where a tile comes from: word (i, j) is the numbers at i * row + j * lane, and `second` further.
// Of the first and of the second numbers so many rows and lanes exist, or more; or none. `ahead` is
// the way to the next tile, which is fetched meanwhile: tiles are too small for the CPU to guess it.
struct TileSource {
  i64 row, lane, second, ahead;
  int rows[2], lanes[2];
};

// One tile of each plane, `plane` floats apart.
template <Contiguous C, int PLANES, class Number>
SHARED void pack_tile(const Number* from, TileSource is, float* to, i64 plane) {
  const bool whole = is.rows[1] >= 16 && is.lanes[1] >= 16 && is.rows[0] >= 16 && is.lanes[0] >= 16;
  if constexpr (C == ALONG_N) {
    if (whole) {
      ROLLED for (int i = 0; i < 16; i++, from += is.row) {
        store_planes<PLANES>(load(from), load(from + is.second), to + i * 16, plane);
        __builtin_prefetch(from + 2 * is.ahead, 0, 2);
        __builtin_prefetch(from + is.second + 2 * is.ahead, 0, 2);
      }
      return;
    }
  }
  alignas(64) float squares[2][16][16];
  for (int s = 0; s < 2; s++)
    load_square<C>(from + s * is.second, is.row, is.lane, is.ahead, smaller(16, is.rows[s]),
                   smaller(16, is.lanes[s]), squares[s]);
  ROLLED for (int i = 0; i < 16; i++)
    store_planes<PLANES>(load(squares[0][i]), load(squares[1][i]), to + i * 16, plane);
}

// The next step along k, of numbers that lie `apart`; of neighbours, the one after it.
constexpr i64 step_ahead(i64 apart) { return apart == 1 ? 64 : 32 * apart; }

// Whole tiles of rows that lie along k: row by row, as memory is read fastest. The next row is
// fetched meanwhile.
template <int PLANES, class Number>
SHARED void pack_whole_rows(const Number* from, i64 row, float* to, i64 plane, int tiles) {
  ROLLED for (int i = 0; i < 16; i++, from += row, to += 16)
    ROLLED for (int k = 0; k < tiles; k++) {
      const Number* here = from + 32 * k;
      store_planes<PLANES>(load(here), load(here + 16), to + k * TILE_FLOATS, plane);
      __builtin_prefetch(here + row);
      if (sizeof(Number) == 4) __builtin_prefetch(here + row + 16);
    }
}

// A column of tiles of A, [plane][tile along k]: `rows` rows of it exist, `numbers` along k.
template <Contiguous C, int PLANES, class Left>
SHARED void pack_tiles_a(const Left* A, i64 am, i64 ak, float* to, i64 plane, int rows,
                         int numbers) {
  int k = 0;
  if (C == ALONG_N && rows >= 16) {
    pack_whole_rows<PLANES>(A, am, to, plane, numbers / 32);
    k = numbers / 32 * 32, to += k / 32 * TILE_FLOATS;
  }
  for (; k < numbers; k += 32, to += TILE_FLOATS) {
    const TileSource is{am, ak, 16 * ak, step_ahead(ak), {rows, rows},
                        {numbers - k, numbers - k - 16}};
    pack_tile<C, PLANES>(A + k * ak, is, to, plane);
  }
}

// Whole tiles of rows that lie along n, of CT columns of tiles: what lies side by side is read at
// a time. Rows further on are fetched meanwhile.
template <int PLANES, int CT, class Number>
SHARED void pack_whole_columns(const Number* from, i64 row, float* to, i64 plane, i64 column) {
  ROLLED for (int i = 0; i < 16; i++, from += row, to += 16)
    UNROLLED for (int j = 0; j < CT; j++) {
      const Number *upper = from + 16 * j, *lower = upper + 16 * row;
      store_planes<PLANES>(load(upper), load(lower), to + j * column, plane);
      __builtin_prefetch(upper + 64 * row, 0, 2);
      __builtin_prefetch(lower + 64 * row, 0, 2);
    }
}

// CT columns of tiles of B, [plane][column][tile along k]: `numbers` of it exist along k, and so
// many columns.
template <Contiguous C, int PLANES, int CT, class Right>
SHARED void pack_tiles_b(const Right* B, i64 bk, i64 bn, float* to, i64 column, int numbers,
                         int columns) {
  const i64 plane = CT * column;
  for (int k = 0; k < numbers; k += 32, to += TILE_FLOATS, B += 32 * bk) {
    if (C == ALONG_N && columns >= 16 * CT && numbers - k >= 32) {
      pack_whole_columns<PLANES, CT>(B, bk, to, plane, column);
      continue;
    }
    ROLLED for (int j = 0; j < CT; j++) {
      const int lanes = columns - 16 * j;
      const TileSource is{bk, bn, 16 * bk, step_ahead(bk), {numbers - k, numbers - k - 16},
                          {lanes, lanes}};
      pack_tile<C, PLANES>(B + 16 * j * bn, is, to + j * column, plane);
    }
  }
}

// One plane: what is bfloat16 already only has to lie in words of neighbours.
template <class G, class Left>
INLINE void pack_words_a(const Left* A, float* to, int rows, int numbers) {
  const int whole = pieces(numbers, 32) * TILE_FLOATS;
  if (rows < 16 || numbers % 32) memset(to, 0, 4 * i64(whole));
  for (int i = 0; i < smaller(16, rows); i++, A += G::AM)
    for (int k = 0; k < numbers; k += 32) {
      Left* out = (Left*)(to + k / 32 * TILE_FLOATS + i * 16);
      const int count = smaller(32, numbers - k);
      if constexpr (G::AK == 1) {
        if (count == 32) memcpy(out, A + k, 64);
        else memcpy(out, A + k, 2 * count);
      } else {
        for (int j = 0; j < count; j++) out[j] = A[i64(k + j) * G::AK];
      }
    }
}

template <class G, class Right>
INLINE void pack_words_b(const Right* B, float* to, int numbers, int columns) {
  const int words = pieces(numbers, 2), whole = pieces(numbers, 32) * 16;
  pack_pairs<contiguous(G::BK, G::BN)>(B, G::BK, G::BN, to, numbers, 16, smaller(16, columns));
  memset(to + words * 16, 0, 64 * i64(whole - words));
}

// CT columns of tiles of B, of which `columns` columns exist.
template <class G, int CT, class Right>
INLINE void pack_columns_b(const Right* B, float* to, i64 column, int numbers, int columns) {
  constexpr Contiguous C = contiguous(G::BK, G::BN);
  if constexpr (G::PLANES_B > 1)
    pack_tiles_b<C, G::PLANES_B, CT>(B, G::BK, G::BN, to, column, numbers, columns);
  else
    for (int j = 0; j < CT; j++)
      pack_words_b<G>(B + 16 * j * i64(G::BN), to + j * column, numbers, columns - 16 * j);
}

// ------------------------------------------------------------------------------------ sums

// A tile at (plane, tile of rows or columns, step along k) of an operand; all in bytes.
struct TilesAt {
  const char* first;
  i64 row, plane, tile, step;
};

// The pairs of planes that matter, from the small ones to the large. Neighbours share a plane.
struct PlanePairs {
  int count = 0, a[6] = {}, b[6] = {};
  constexpr void add(int p, int q) { a[count] = p, b[count++] = q; }
};
template <int PLANES_A, int PLANES_B> constexpr PlanePairs plane_pairs() {
  PlanePairs pairs;
  for (int p = PLANES_A - 1; p >= 0; p--) pairs.add(p, 0);
  for (int q = PLANES_B - 1; q > 0; q--) pairs.add(0, q);
  if (PLANES_A > 1 && PLANES_B > 1) pairs.add(1, 1);
  return pairs;
}

// One step along k of RT x CT tiles, with all pairs of planes that matter.
template <int RT, int CT, int PLANES_A, int PLANES_B>
INLINE void multiply_step(TilesAt a, TilesAt b, const char* at_a, const char* at_b) {
  constexpr PlanePairs pairs = plane_pairs<PLANES_A, PLANES_B>();
  constexpr int SPARE = 4 - RT;  // registers for tiles of B
  for_each(Below<pairs.count>{}, [&]<int P>() INLINE_CALL {
    constexpr bool same_a = P > 0 && pairs.a[P] == pairs.a[P - (P > 0)];
    constexpr bool same_b = P > 0 && pairs.b[P] == pairs.b[P - (P > 0)] && CT <= SPARE;
    const char *plane_a = at_a + pairs.a[P] * a.plane, *plane_b = at_b + pairs.b[P] * b.plane;
    for_each(Below<RT>{}, [&]<int I>() INLINE_CALL {
      if constexpr (!same_a) tile_load<4 + I>(plane_a + I * a.tile, a.row);
    });
    for_each(Below<CT>{}, [&]<int J>() INLINE_CALL {
      constexpr int B = 4 + RT + J % SPARE;
      if constexpr (!same_b) tile_load<B>(plane_b + J * b.tile, b.row);
      for_each(Below<RT>{}, [&]<int I>() INLINE_CALL { tile_multiply<I * CT + J, 4 + I, B>(); });
    });
  });
}

// The same of one row of tiles: all planes of A stay, and each tile of B is loaded once.
template <int CT, int PLANES_A, int PLANES_B>
INLINE void multiply_step_of_row(TilesAt a, TilesAt b, const char* at_a, const char* at_b) {
  constexpr int SPARE = 4 - PLANES_A;
  for_each(Below<PLANES_A>{}, [&]<int P>() INLINE_CALL {
    tile_load<4 + P>(at_a + P * a.plane, a.row);
  });
  for_each(Below<PLANES_B>{}, [&]<int Q>() INLINE_CALL {
    for_each(Below<CT>{}, [&]<int J>() INLINE_CALL {
      constexpr int B = 4 + PLANES_A + J % SPARE;
      tile_load<B>(at_b + Q * b.plane + J * b.tile, b.row);
      for_each(Below<PLANES_A>{}, [&]<int P>() INLINE_CALL {
        if constexpr (P + Q <= 2) tile_multiply<J, 4 + P, B>();
      });
    });
  });
}

// The sums of RT x CT tiles over `steps` steps along k. What the epilogue will write is fetched
// meanwhile, some rows with each step.
template <int RT, int CT, int PLANES_A, int PLANES_B>
SHARED void sum_tiles(TilesAt a, TilesAt b, int steps, float* to, const Ahead& ahead) {
  constexpr int FETCHED = plane_pairs<PLANES_A, PLANES_B>().count;
  int fetched = ahead.arrays ? 0 : 16 * RT;
  for_each(Below<RT * CT>{}, [&]<int R>() INLINE_CALL { tile_zero<R>(); });
  const char *at_a = a.first, *at_b = b.first;
  ROLLED for (int k = 0; k < steps; k++, at_a += a.step, at_b += b.step) {
    const int until = smaller(16 * RT, fetched + FETCHED);
    ROLLED for (; fetched < until; fetched++) fetch_row<CT>(ahead, fetched);
    if constexpr (RT == 1) multiply_step_of_row<CT, PLANES_A, PLANES_B>(a, b, at_a, at_b);
    else multiply_step<RT, CT, PLANES_A, PLANES_B>(a, b, at_a, at_b);
  }
  for_each(Below<RT * CT>{}, [&]<int R>() INLINE_CALL {
    tile_store<R>(to + R / CT * 16 * CT * 16 + R % CT * 16, 64 * CT);
  });
}

INLINE void add_sums(float* to, const float* more, int count) {
  ROLLED for (int i = 0; i < count; i += LANES) store(to + i, load(to + i) + load(more + i));
}

// ------------------------------------------------------------------------------------- loops

// The strips of a block with the panel whose COUNT columns start at panel p.
template <class G, int COUNT, class Left, class Right, class EP>
INLINE void tiles_panel(OuterBlock<Left, Right> block, int p, EP ep) {
  constexpr int ROWS = G::plan.rows, RT = ROWS / 16, CT = pieces(COUNT, 16);
  constexpr int REST = pieces(G::M % ROWS, 16);
  alignas(64) float sums[ROWS * CT * 16];
  const int n0 = p * G::WIDTH, numbers = smaller(block.steps * 32, G::K - block.k0 * 32);
  const i64 column = i64(G::plan.kept_b ? G::STEPS : block.steps) * TILE_FLOATS;  // of tiles
  const i64 plane_b = column * CT;
  float* packed = block.scratch + G::at_b + (G::one_block ? 0 : p * G::PANEL);
  if constexpr (!G::plan.kept_b)
    if (block.pack_b)
      pack_columns_b<G, CT>(block.B + i64(n0) * G::BN + i64(block.k0) * 32 * G::BK, packed, column,
                            numbers, COUNT);
  const float* kept = (const float*)block.B + p * G::KEPT_PANEL + i64(block.k0) * TILE_FLOATS;
  const TilesAt b{(const char*)(G::plan.kept_b ? kept : packed), 64, 4 * plane_b, 4 * column, 1024};
  for (int s = block.strip; s < block.strips; s++) {
    const i64 row_of_tiles = i64(block.steps) * TILE_FLOATS, strip = row_of_tiles * RT * G::PLANES_A;
    const Left* lies = block.A + i64(s) * ROWS * G::AM + i64(block.k0) * 32;
    const TilesAt a = G::plan.pack_a
        ? TilesAt{(const char*)(block.scratch + (s - block.strip) * strip), 64,
                  4 * row_of_tiles * RT, 4 * row_of_tiles, 1024}
        : TilesAt{(const char*)lies, 2 * i64(G::AM), 0, 32 * i64(G::AM), 64};
    const int rows = smaller(ROWS, G::M - s * ROWS);
    const bool fetch = block.k0 + block.steps == G::STEPS && rows == ROWS;
    const Ahead ahead = from_place(block.ahead, s * ROWS * block.ahead.row + n0, fetch);
    if (REST == 0 || rows == ROWS)
      sum_tiles<RT, CT, G::PLANES_A, G::PLANES_B>(a, b, block.steps, sums, ahead);
    else if constexpr (REST != 0)
      sum_tiles<REST, CT, G::PLANES_A, G::PLANES_B>(a, b, block.steps, sums, ahead);
    if constexpr (G::plan.block_k < G::STEPS) {
      constexpr int SIZE = ROWS * CT * 16;
      float* waiting = block.scratch + G::at_sums + (i64(p) * G::STRIPS + s) * G::TILE;
      if (block.k0 != 0) add_sums(sums, waiting, SIZE);
      if (block.k0 + block.steps != G::STEPS) {
        memcpy(waiting, sums, 4 * SIZE);
        continue;
      }
    }
    ROLLED for (int i = 0; i < rows; i++) ep(s * ROWS + i, n0, COUNT, sums + i * CT * 16);
  }
}

template <class G, class Left, class Right>
INLINE void pack_strips_of_tiles(OuterBlock<Left, Right> block) {
  constexpr int ROWS = G::plan.rows, RT = ROWS / 16;
  const int numbers = smaller(block.steps * 32, G::K - block.k0 * 32);
  const i64 row_of_tiles = i64(block.steps) * TILE_FLOATS;
  const int piece = G::AM == 1 && G::AK != 1 ? 32 : numbers;  // along what lies side by side
  for (int k = 0; k < numbers; k += piece)
    for (int s = block.strip; s < block.strips; s++)
      for (int i = 0; i < RT; i++) {
        const int m = s * ROWS + 16 * i, count = smaller(piece, numbers - k);
        if (m >= G::M) break;
        const Left* from = block.A + i64(m) * G::AM + (i64(block.k0) * 32 + k) * G::AK;
        float* to = block.scratch + (i64(s - block.strip) * RT * G::PLANES_A + i) * row_of_tiles +
                    k / 32 * TILE_FLOATS;
        if constexpr (G::PLANES_A == 1) pack_words_a<G>(from, to, G::M - m, count);
        else
          pack_tiles_a<contiguous(G::AM, G::AK), G::PLANES_A>(from, G::AM, G::AK, to,
                                                              row_of_tiles * RT, G::M - m, count);
      }
}

template <class G, class Left, class Right, class EP>
INLINE void gemm_tiles(const Left* A, const Right* B, float* scratch, int t, int T, EP ep,
                       Ahead ahead) {
  constexpr int FULL = G::N / G::WIDTH, LEFT = G::N % G::WIDTH;
  const TileShare mine = tile_share(G::PANELS, G::STRIPS, t, T);
  tiles_begin();
  for (int k0 = 0; k0 < G::STEPS; k0 += G::plan.block_k) {
    const int steps = smaller(G::plan.block_k, G::STEPS - k0);
    for (int s = mine.strip; s < mine.strips; s += G::plan.block_strips) {
      const int end = smaller(mine.strips, s + G::plan.block_strips);
      const OuterBlock<Left, Right> block{A, B, scratch, k0, steps, s, end, s == mine.strip, ahead};
      if constexpr (G::plan.pack_a) pack_strips_of_tiles<G>(block);
      if constexpr (FULL > 0)
        for (int p = mine.panel; p < smaller(mine.panels, FULL); p++)
          tiles_panel<G, G::WIDTH>(block, p, ep);
      if constexpr (LEFT != 0)
        if (mine.panels == G::PANELS) tiles_panel<G, LEFT>(block, FULL, ep);
    }
  }
  tiles_end();
}

// All panels of B, for many products.
template <class G, class Right>
INLINE void pack_kept_tiles(const Right* B, float* to, int t, int T) {
  const int end = int(share(G::PANELS, t + 1, T));
  for (int p = int(share(G::PANELS, t, T)); p < end; p++) {
    const int n0 = p * G::WIDTH;
    const Right* from = B + i64(n0) * G::BN;
    float* out = to + p * G::KEPT_PANEL;
    constexpr i64 column = i64(G::STEPS) * TILE_FLOATS;
    constexpr int WHOLE = G::plan.vectors, REST = pieces(G::N % G::WIDTH, 16);
    if (REST == 0 || G::N - n0 >= G::WIDTH)
      pack_columns_b<G, WHOLE>(from, out, column, G::K, G::WIDTH);
    else if constexpr (REST != 0) pack_columns_b<G, REST>(from, out, column, G::K, G::N - n0);
  }
}
