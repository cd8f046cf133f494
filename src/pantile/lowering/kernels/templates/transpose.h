// Copies that turn rows into columns, a square of vectors at a time.

#pragma once

// to[i * to_row + j] = from[j * from_row + i], for i of `columns` and j of `rows`. Threads share i.
SHARED void transposed_copy(const float* from, i64 from_row, float* to, i64 to_row, int columns,
                            int rows, int t, int T) {
  const int squares = pieces(columns, LANES), end = smaller(columns, share(squares, t + 1, T) * LANES);
  for (int i = share(squares, t, T) * LANES; i < end; i += LANES) {
    const int wide = smaller(LANES, columns - i);
    for (int j = 0; j < rows; j += LANES) {
      const int high = smaller(LANES, rows - j);
      const float* read = from + j * from_row + i;
      vec square[LANES];
      UNROLLED for (int r = 0; r < LANES; r++) {
        const float* row = read + smaller(r, high - 1) * from_row;
        square[r] = wide == LANES ? load(row) : load_first(row, wide);
      }
      transpose(square);
      float* write = to + i * to_row + j;
      UNROLLED for (int c = 0; c < LANES; c++, write += to_row) {
        if (c >= wide) break;
        if (high == LANES) store(write, square[c]);
        else store_first(write, square[c], high);
      }
    }
  }
}
