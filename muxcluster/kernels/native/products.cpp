// Products of rows in fp32 by weights in panels of 16 outputs, in fp32, bf16, int8, FP8 or 4 bits.
//
// A panel holds, for each input in turn, the elements of 16 outputs. Weights are widened in
// registers, so a product of few rows reads no more than their bytes; of many rows a tile is
// widened once into the first-level cache and used for all of them.

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "elements.h"
#include "exponential.h"
#include "products.h"
#include "team.h"

namespace mux {
namespace {

// INT8_PAIRS: of int8 for inputs rounded to 8 bits, too, in whole numbers: of every two inputs in
// turn, 16 outputs' elements for both.
enum Kind { FP32, BF16, INT8, FP8, INT4, INT8_PAIRS };

constexpr int64_t DEPTH = 256;        // inputs of a widened tile: 16 KiB
constexpr int BLOCK_ROWS = 6;         // with two registers each, what 16 registers hold
constexpr int64_t MANY_ROWS = 32 * BLOCK_ROWS; // a tile's inputs lie in the second-level cache
constexpr int AT_ONCE = 4;            // rows for which a weight is widened as it is used
constexpr int FEW_ROWS = 8;           // up to so many, that is done, in turns if need be
constexpr int64_t AHEAD_BYTES = 2048; // of the weight, asked for before they are used
constexpr int64_t WHOLE_PAIRS = 512;  // of inputs: 16 KiB of a panel, used for all rows

template <int kind> constexpr int64_t BYTES = 0; // of a panel for one input
template <> constexpr int64_t BYTES<FP32> = 64;
template <> constexpr int64_t BYTES<BF16> = 32;
template <> constexpr int64_t BYTES<INT8> = 16;
template <> constexpr int64_t BYTES<FP8> = 16;
template <> constexpr int64_t BYTES<INT4> = 8;

struct Pair {
    __m256 low, high;
};

template <int kind> inline Pair widened(const uint8_t *at) {
    if constexpr (kind == FP32) {
        const float *values = reinterpret_cast<const float *>(at);
        return {_mm256_loadu_ps(values), _mm256_loadu_ps(values + 8)};
    } else if constexpr (kind == BF16) {
        const __m128i *halves = reinterpret_cast<const __m128i *>(at);
        const __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves));
        const __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves + 1));
        return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
    } else if constexpr (kind == INT4) { // outputs 0 to 7 in the lower halves of bytes
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(at));
        const __m128i mask = _mm_set1_epi8(15);
        const __m128i low = _mm_and_si128(bytes, mask);
        const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
        return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(low)),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high))};
    } else {
        const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(at));
        const __m128i high = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(at + 8));
        if constexpr (kind == FP8)
            return {of_fp8(_mm256_cvtepi8_epi32(low)), of_fp8(_mm256_cvtepi8_epi32(high))};
        else
            return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high))};
    }
}

// The zeros of 8 outputs: an element is (value - zero) * scale.
template <int kind> inline __m256 zeros_of(const Weight &weight, int64_t place) {
    return weight.zeros ? _mm256_loadu_ps(weight.zeros + place)
                        : _mm256_set1_ps(kind == INT4 ? 8.0f : 0.0f);
}

// What a product starts from: [rows, outputs], with a bias [outputs]; either may be missing.
struct Start {
    const float *bias, *added;
    int64_t num_out;

    // Write what `width` outputs of a row start from.
    void put(int64_t row, int64_t column, int64_t width, float *output) const {
        const float *first = bias ? bias + column : nullptr;
        const float *second = added ? added + row * num_out + column : nullptr;
        if (width == WIDTH) {
            for (int64_t place = 0; place < WIDTH; place += 8) {
                __m256 sum = first ? _mm256_loadu_ps(first + place) : _mm256_setzero_ps();
                if (second)
                    sum = _mm256_add_ps(sum, _mm256_loadu_ps(second + place));
                _mm256_storeu_ps(output + place, sum);
            }
            return;
        }
        for (int64_t place = 0; place < width; ++place)
            output[place] = (first ? first[place] : 0.0f) + (second ? second[place] : 0.0f);
    }
};

// Add a panel's outputs of a row [16], of which `width` are outputs of the product.
inline void add(const float *found, int64_t width, float *output) {
    if (width < WIDTH) {
        for (int64_t place = 0; place < width; ++place)
            output[place] += found[place];
        return;
    }
    for (int64_t place = 0; place < WIDTH; place += 8)
        _mm256_storeu_ps(output + place, _mm256_add_ps(_mm256_loadu_ps(output + place),
                                                       _mm256_loadu_ps(found + place)));
}

// outputs [R, 16] of one panel, for few rows: the weight is read once.
// sums: [R, groups] of the inputs, where the weight has zeros.
// Loops over few things are unrolled by name, or sums would lie in memory (GCC 12).
template <int kind, int R>
void few_rows(const Weight &weight, int64_t panel, const float *inputs, const float *sums,
              float *outputs) {
    constexpr int UNROLLED = R == 1 ? 4 : R <= 3 ? 2 : 1; // enough sums to hide their latency
    const int64_t num_in = weight.num_in, num_groups = weight.num_groups();
    const uint8_t *at = weight.values + panel * num_in * BYTES<kind>;
    Pair totals[R];
#pragma GCC unroll 8
    for (int row = 0; row < R; ++row)
        totals[row] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t group = 0; group < num_groups; ++group) {
        Pair partial[UNROLLED][R];
#pragma GCC unroll 8
        for (int turn = 0; turn < UNROLLED; ++turn)
#pragma GCC unroll 8
            for (int row = 0; row < R; ++row)
                partial[turn][row] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        int64_t input = group * weight.group;
        const int64_t end = input + weight.group;
        const auto add = [&](int turn, int64_t place) {
            const Pair elements = widened<kind>(at + place * BYTES<kind>);
#pragma GCC unroll 8
            for (int row = 0; row < R; ++row) {
                const __m256 value = _mm256_broadcast_ss(inputs + row * num_in + place);
                Pair &sum = partial[turn][row];
                sum.low = _mm256_fmadd_ps(value, elements.low, sum.low);
                sum.high = _mm256_fmadd_ps(value, elements.high, sum.high);
            }
        };
        for (; input + UNROLLED <= end; input += UNROLLED) {
            const uint8_t *ahead = at + input * BYTES<kind> + AHEAD_BYTES;
            for (int64_t line = 0; line < UNROLLED * BYTES<kind>; line += 64)
                _mm_prefetch(reinterpret_cast<const char *>(ahead + line), _MM_HINT_T0);
#pragma GCC unroll 8
            for (int turn = 0; turn < UNROLLED; ++turn)
                add(turn, input + turn);
        }
        for (; input < end; ++input)
            add(0, input);
        const int64_t place = (panel * num_groups + group) * WIDTH;
#pragma GCC unroll 8
        for (int row = 0; row < R; ++row) {
            Pair sum = partial[0][row];
#pragma GCC unroll 8
            for (int turn = 1; turn < UNROLLED; ++turn) {
                sum.low = _mm256_add_ps(sum.low, partial[turn][row].low);
                sum.high = _mm256_add_ps(sum.high, partial[turn][row].high);
            }
            if (weight.zeros || kind == INT4) {
                const __m256 all = _mm256_set1_ps(sums[row * num_groups + group]);
                sum.low = _mm256_fnmadd_ps(zeros_of<kind>(weight, place), all, sum.low);
                sum.high = _mm256_fnmadd_ps(zeros_of<kind>(weight, place + 8), all, sum.high);
            }
            Pair &total = totals[row];
            if (weight.scales) {
                total.low =
                    _mm256_fmadd_ps(_mm256_loadu_ps(weight.scales + place), sum.low, total.low);
                total.high =
                    _mm256_fmadd_ps(_mm256_loadu_ps(weight.scales + place + 8), sum.high, total.high);
            } else {
                total = {_mm256_add_ps(total.low, sum.low), _mm256_add_ps(total.high, sum.high)};
            }
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < R; ++row) {
        _mm256_storeu_ps(outputs + row * WIDTH, totals[row].low);
        _mm256_storeu_ps(outputs + row * WIDTH + 8, totals[row].high);
    }
}

// Widen inputs `first` to `end` of a panel: fp32 [inputs, 16].
template <int kind>
void widen(const Weight &weight, int64_t panel, int64_t first, int64_t end, float *tile) {
    const uint8_t *at = weight.values + panel * weight.num_in * BYTES<kind>;
    while (first < end) {
        const int64_t group = first / weight.group;
        const int64_t until = std::min(end, (group + 1) * weight.group);
        const int64_t place = (panel * weight.num_groups() + group) * WIDTH;
        Pair scale = {_mm256_set1_ps(1.0f), _mm256_set1_ps(1.0f)};
        Pair offset = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        if (weight.scales)
            scale = {_mm256_loadu_ps(weight.scales + place),
                     _mm256_loadu_ps(weight.scales + place + 8)};
        if (weight.zeros || kind == INT4)
            offset = {_mm256_mul_ps(scale.low, zeros_of<kind>(weight, place)),
                      _mm256_mul_ps(scale.high, zeros_of<kind>(weight, place + 8))};
        for (; first < until; ++first, tile += WIDTH) {
            _mm_prefetch(reinterpret_cast<const char *>(at + first * BYTES<kind> + AHEAD_BYTES),
                         _MM_HINT_T0);
            const Pair elements = widened<kind>(at + first * BYTES<kind>);
            _mm256_storeu_ps(tile, _mm256_fmsub_ps(elements.low, scale.low, offset.low));
            _mm256_storeu_ps(tile + 8, _mm256_fmsub_ps(elements.high, scale.high, offset.high));
        }
    }
}

// Add to outputs [R, 16] (`stride` apart) the product of inputs [depth, R] and a tile [depth, 16].
template <int R>
void block(const float *tile, int64_t depth, const float *inputs, float *outputs, int64_t stride) {
    __m256 low[R], high[R];
#pragma GCC unroll 8
    for (int row = 0; row < R; ++row) {
        low[row] = _mm256_loadu_ps(outputs + row * stride);
        high[row] = _mm256_loadu_ps(outputs + row * stride + 8);
    }
    for (int64_t input = 0; input < depth; ++input, tile += WIDTH, inputs += R) {
        _mm_prefetch(reinterpret_cast<const char *>(tile) + AHEAD_BYTES, _MM_HINT_T0);
        const __m256 first = _mm256_loadu_ps(tile), second = _mm256_loadu_ps(tile + 8);
#pragma GCC unroll 8
        for (int row = 0; row < R; ++row) {
            const __m256 value = _mm256_broadcast_ss(inputs + row);
            low[row] = _mm256_fmadd_ps(value, first, low[row]);
            high[row] = _mm256_fmadd_ps(value, second, high[row]);
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < R; ++row) {
        _mm256_storeu_ps(outputs + row * stride, low[row]);
        _mm256_storeu_ps(outputs + row * stride + 8, high[row]);
    }
}

using Block = void (*)(const float *, int64_t, const float *, float *, int64_t);
constexpr Block BLOCKS[BLOCK_ROWS + 1] = {nullptr,  block<1>, block<2>, block<3>,
                                          block<4>, block<5>, block<6>};

// Panels `first` to `end` of a product of many rows, which lie in blocks.
template <int kind>
void many_rows(const Weight &weight, int64_t first, int64_t end, const float *blocks,
               int64_t num_rows, const Start &start, float *outputs) {
    const int64_t num_in = weight.num_in, num_out = weight.num_out;
    alignas(64) float tile[DEPTH * WIDTH];
    float edge[BLOCK_ROWS * WIDTH]; // of the last panel, which may have fewer outputs
    for (int64_t top = 0; top < num_rows; top += MANY_ROWS) {
        const int64_t bottom = std::min(num_rows, top + MANY_ROWS);
        for (int64_t input = 0; input < num_in; input += DEPTH) {
            const int64_t depth = std::min(DEPTH, num_in - input);
            for (int64_t panel = first; panel < end; ++panel) {
                const int64_t column = panel * WIDTH;
                const int64_t width = std::min(WIDTH, num_out - column);
                const float *elements = tile;
                if constexpr (kind == FP32)
                    elements = reinterpret_cast<const float *>(weight.values) +
                               (panel * num_in + input) * WIDTH;
                else
                    widen<kind>(weight, panel, input, input + depth, tile);
                for (int64_t row = top; row < bottom; row += BLOCK_ROWS) {
                    const int rows = int(std::min<int64_t>(BLOCK_ROWS, bottom - row));
                    float *output = outputs + row * num_out + column;
                    if (input == 0)
                        for (int each = 0; each < rows; ++each)
                            start.put(row + each, column, width, output + each * num_out);
                    const float *taken = blocks + row * num_in + input * rows;
                    if (width == WIDTH) {
                        BLOCKS[rows](elements, depth, taken, output, num_out);
                        continue;
                    }
                    for (int each = 0; each < rows; ++each)
                        std::copy_n(output + each * num_out, width, edge + each * WIDTH);
                    BLOCKS[rows](elements, depth, taken, edge, WIDTH);
                    for (int each = 0; each < rows; ++each)
                        std::copy_n(edge + each * WIDTH, width, output + each * num_out);
                }
            }
        }
    }
}

template <int kind>
void panels(const Weight &weight, int64_t first, int64_t end, const float *inputs,
            int64_t num_rows, const float *sums, const Start &start, float *outputs) {
    if (num_rows > FEW_ROWS) {
        many_rows<kind>(weight, first, end, inputs, num_rows, start, outputs);
        return;
    }
    using Few = void (*)(const Weight &, int64_t, const float *, const float *, float *);
    constexpr Few few[AT_ONCE + 1] = {nullptr, few_rows<kind, 1>, few_rows<kind, 2>,
                                      few_rows<kind, 3>, few_rows<kind, 4>};
    float found[AT_ONCE * WIDTH];
    for (int64_t panel = first; panel < end; ++panel) {
        const int64_t column = panel * WIDTH;
        const int64_t width = std::min(WIDTH, weight.num_out - column);
        for (int64_t top = 0; top < num_rows; top += AT_ONCE) {
            const int64_t rows = std::min<int64_t>(AT_ONCE, num_rows - top);
            few[rows](weight, panel, inputs + top * weight.num_in,
                      sums + top * weight.num_groups(), found);
            for (int64_t row = 0; row < rows; ++row) {
                float *output = outputs + (top + row) * weight.num_out + column;
                start.put(top + row, column, width, output);
                add(found + row * WIDTH, width, output);
            }
        }
    }
}

// found [inputs] = silu(gate) * up of [2 * inputs], first all gates.
void gate_row(const float *both, int64_t num_in, bool is_bf16, float *found) {
    const float *gates = both, *ups = both + num_in;
    const __m256 one = _mm256_set1_ps(1.0f), signs = _mm256_set1_ps(-0.0f);
    int64_t place = 0;
    for (; place + 8 <= num_in; place += 8) {
        const __m256 gate = _mm256_loadu_ps(gates + place);
        const __m256 power = exponential(_mm256_or_ps(gate, signs)); // of minus its size
        const __m256 top = _mm256_blendv_ps(one, power, gate);       // where the gate is negative
        const __m256 sigmoid = _mm256_div_ps(top, _mm256_add_ps(one, power));
        __m256 silu = _mm256_mul_ps(gate, sigmoid);
        if (is_bf16)
            silu = rounded(silu);
        _mm256_storeu_ps(found + place, _mm256_mul_ps(silu, _mm256_loadu_ps(ups + place)));
    }
    for (; place < num_in; ++place) {
        const float silu = gates[place] / (1.0f + std::exp(-gates[place]));
        found[place] = (is_bf16 ? rounded(silu) : silu) * ups[place];
    }
    if (is_bf16)
        round_all(found, num_in);
}

} // namespace

void norm_row(const float *row, int64_t num_in, const float *weight, float eps, bool is_bf16,
              float *found) {
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t place = 0; place < num_in; ++place)
        squares += row[place] * row[place];
    const float factor = 1.0f / std::sqrt(squares / float(num_in) + eps);
    for (int64_t place = 0; place < num_in; ++place)
        found[place] = row[place] * factor;
    if (is_bf16)
        round_all(found, num_in);
    for (int64_t place = 0; place < num_in; ++place)
        found[place] *= weight[place];
    if (is_bf16)
        round_all(found, num_in);
}

namespace {

// Round a row to 8 bits: its largest element becomes 127 steps.
void round_row(const float *row, int64_t num_in, float *found) {
    float largest = 0.0f;
#pragma omp simd reduction(max : largest)
    for (int64_t place = 0; place < num_in; ++place)
        largest = std::max(largest, std::fabs(row[place]));
    const float scale = std::max(largest / 127.0f, 1e-12f);
    for (int64_t place = 0; place < num_in; ++place)
        found[place] = std::nearbyint(row[place] / scale) * scale;
}

} // namespace

void prepare(const Preparation &preparation, const float *given, int64_t num_in, float *found) {
    if (preparation.is_gated)
        gate_row(given, num_in, preparation.is_bf16, found);
    else if (preparation.norm)
        norm_row(given, num_in, preparation.norm, preparation.eps, preparation.is_bf16, found);
    if (preparation.rounds)
        round_row(preparation.is_gated || preparation.norm ? found : given, num_in, found);
}

namespace {

// Put prepared rows [rows, inputs] (`step` apart) into blocks of 6 rows: [inputs, rows of it].
void in_blocks(const float *inputs, int64_t step, int64_t num_rows, int64_t num_in,
               int64_t number, const Preparation &preparation, float *prepared, float *blocks) {
    const int64_t first = number * BLOCK_ROWS;
    const int64_t rows = std::min<int64_t>(BLOCK_ROWS, num_rows - first);
    float *block = blocks + first * num_in;
    for (int64_t each = 0; each < rows; ++each) {
        const float *row = inputs + (first + each) * step;
        if (!preparation.is_none()) {
            prepare(preparation, row, num_in, prepared);
            row = prepared;
        }
        for (int64_t input = 0; input < num_in; ++input)
            block[input * rows + each] = row[input];
    }
}

// As `in_blocks`, rows rounded to whole numbers: pairs of 16 bits [inputs / 2, rows of the block].
// Each row's step, which is 1 of them, is not a number where one of the row's is not.
void in_pairs(const float *inputs, int64_t step, int64_t num_rows, int64_t num_in, int64_t number,
              Preparation preparation, float *prepared, Scratch &scratch) {
    const int64_t first = number * BLOCK_ROWS;
    const int64_t rows = std::min<int64_t>(BLOCK_ROWS, num_rows - first);
    int32_t *block = scratch.pairs.data() + first * num_in / 2;
    preparation.rounds = false; // that is done here
    for (int64_t each = 0; each < rows; ++each) {
        const float *row = inputs + (first + each) * step;
        if (!preparation.is_none()) {
            prepare(preparation, row, num_in, prepared);
            row = prepared;
        }
        float largest = 0.0f, nothing = 0.0f;
#pragma omp simd reduction(max : largest) reduction(+ : nothing)
        for (int64_t place = 0; place < num_in; ++place) {
            largest = std::max(largest, std::fabs(row[place]));
            nothing += row[place] * 0.0f;
        }
        const float size = std::max(largest / 127.0f, 1e-12f);
        scratch.steps[size_t(first + each)] = size + nothing;
        int64_t pair = 0;
        const __m256 divisor = _mm256_set1_ps(size);
        alignas(32) int32_t found[8];
        for (; 2 * pair + 16 <= num_in; pair += 8) {
            const float *at = row + 2 * pair;
            const __m256i left = _mm256_cvtps_epi32(_mm256_div_ps(_mm256_loadu_ps(at), divisor));
            const __m256i right =
                _mm256_cvtps_epi32(_mm256_div_ps(_mm256_loadu_ps(at + 8), divisor));
            // packed within halves of the registers, whose middle quarters change places then
            const __m256i packed = _mm256_packs_epi32(left, right);
            _mm256_store_si256(reinterpret_cast<__m256i *>(found),
                               _mm256_permute4x64_epi64(packed, 0xd8));
            for (int place = 0; place < 8; ++place)
                block[(pair + place) * rows + each] = found[place];
        }
        for (; pair < num_in / 2; ++pair) {
            const int low = int(std::nearbyint(row[2 * pair] / size));
            const int high = int(std::nearbyint(row[2 * pair + 1] / size));
            block[pair * rows + each] = int32_t((uint32_t(high) << 16) | (uint32_t(low) & 0xffff));
        }
    }
}

// Sums over pairs of inputs of a panel, for R rows: whole numbers.
template <int R>
void sum_pairs(const uint8_t *panel, int64_t num_pairs, const int32_t *inputs, __m256i *low,
               __m256i *high) {
    __m256i first[R], second[R];
#pragma GCC unroll 8
    for (int row = 0; row < R; ++row)
        first[row] = second[row] = _mm256_setzero_si256();
    for (int64_t pair = 0; pair < num_pairs; ++pair, panel += 2 * WIDTH, inputs += R) {
        _mm_prefetch(reinterpret_cast<const char *>(panel) + AHEAD_BYTES, _MM_HINT_T0);
        const __m128i *at = reinterpret_cast<const __m128i *>(panel);
        const __m256i left = _mm256_cvtepi8_epi16(_mm_loadu_si128(at));
        const __m256i right = _mm256_cvtepi8_epi16(_mm_loadu_si128(at + 1));
#pragma GCC unroll 8
        for (int row = 0; row < R; ++row) {
            const __m256i both = _mm256_set1_epi32(inputs[row]);
            first[row] = _mm256_add_epi32(first[row], _mm256_madd_epi16(both, left));
            second[row] = _mm256_add_epi32(second[row], _mm256_madd_epi16(both, right));
            // Row after row: with all products first, sums would leave their registers.
            asm volatile("" : "+x"(first[row]), "+x"(second[row]));
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < R; ++row) {
        low[row] = first[row];
        high[row] = second[row];
    }
}

// Panels `first` to `end` of a product of whole numbers. steps: of the rows.
void whole_panels(const Weight &weight, int64_t first, int64_t end, const int32_t *pairs,
                  const float *steps, int64_t num_rows, const Start &start, float *outputs) {
    using Sum = void (*)(const uint8_t *, int64_t, const int32_t *, __m256i *, __m256i *);
    constexpr Sum sums[BLOCK_ROWS + 1] = {nullptr,      sum_pairs<1>, sum_pairs<2>, sum_pairs<3>,
                                          sum_pairs<4>, sum_pairs<5>, sum_pairs<6>};
    const int64_t all = weight.num_in / 2, num_out = weight.num_out;
    __m256i low[BLOCK_ROWS], high[BLOCK_ROWS];
    alignas(32) float found[WIDTH];
    const auto add_block = [&](int64_t panel, int64_t pair, int64_t top, int64_t rows) {
        const int64_t column = panel * WIDTH, width = std::min(WIDTH, num_out - column);
        const __m256 left = _mm256_loadu_ps(weight.scales + column);
        const __m256 right = _mm256_loadu_ps(weight.scales + column + 8);
        sums[rows](weight.values + (panel * all + pair) * 2 * WIDTH,
                   std::min(WHOLE_PAIRS, all - pair), pairs + top * all + pair * rows, low, high);
        for (int64_t row = 0; row < rows; ++row) {
            const __m256 size = _mm256_set1_ps(steps[top + row]);
            _mm256_store_ps(found,
                            _mm256_mul_ps(_mm256_cvtepi32_ps(low[row]), _mm256_mul_ps(left, size)));
            _mm256_store_ps(found + 8, _mm256_mul_ps(_mm256_cvtepi32_ps(high[row]),
                                                     _mm256_mul_ps(right, size)));
            float *output = outputs + (top + row) * num_out + column;
            if (pair == 0)
                start.put(top + row, column, width, output);
            add(found, width, output);
        }
    };
    for (int64_t top = 0; top < num_rows; top += MANY_ROWS)
        for (int64_t panel = first; panel < end; ++panel)
            for (int64_t pair = 0; pair < all; pair += WHOLE_PAIRS)
                for (int64_t row = top; row < std::min(num_rows, top + MANY_ROWS); row += BLOCK_ROWS)
                    add_block(panel, pair, row, std::min<int64_t>(BLOCK_ROWS, num_rows - row));
}

// Return the sums of each group of a prepared row.
void sum_groups(const float *row, int64_t num_groups, int64_t group, float *sums) {
    for (int64_t number = 0; number < num_groups; ++number, row += group) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t input = 0; input < group; ++input)
            sum += row[input];
        sums[number] = sum;
    }
}

} // namespace

void Scratch::fit(const Product &product, int64_t num_rows) {
    const Weight &weight = product.weight;
    if (product.kind == INT8_PAIRS) {
        pairs.resize(std::max(pairs.size(), size_t(num_rows * weight.num_in / 2)));
        steps.resize(std::max(steps.size(), size_t(num_rows)));
        return;
    }
    const size_t size = size_t(num_rows * weight.num_in);
    std::vector<float> &rows = num_rows > FEW_ROWS ? blocks : prepared;
    rows.resize(std::max(rows.size(), size));
    if (num_rows <= FEW_ROWS && (weight.zeros || product.kind == INT4))
        sums.resize(std::max(sums.size(), size_t(num_rows * weight.num_groups())));
}

void Scratch::trim() {
    for (std::vector<float> *each : {&prepared, &blocks, &sums})
        mux::trim(*each);
    mux::trim(pairs);
}

void product_by_team(const Product &product, const float *inputs, int64_t num_rows,
                     const Preparation &preparation, const float *added, float *outputs,
                     Scratch &scratch) {
    const Weight &weight = product.weight;
    const int64_t num_in = weight.num_in, num_out = weight.num_out;
    const int64_t step = preparation.is_gated ? 2 * num_in : num_in;
    const bool has_sums = weight.zeros || product.kind == INT4;
    float *sums = scratch.sums.data();
    const Start start = {product.bias, added, num_out};
    if (product.kind == INT8_PAIRS) {
        static thread_local std::vector<float> row;
        row.resize(size_t(num_in));
#pragma omp for
        for (int64_t number = 0; number < (num_rows + BLOCK_ROWS - 1) / BLOCK_ROWS; ++number)
            in_pairs(inputs, step, num_rows, num_in, number, preparation, row.data(), scratch);
    } else if (num_rows > FEW_ROWS) {
        static thread_local std::vector<float> row;
        row.resize(size_t(num_in));
        float *found = scratch.blocks.data();
#pragma omp for
        for (int64_t number = 0; number < (num_rows + BLOCK_ROWS - 1) / BLOCK_ROWS; ++number)
            in_blocks(inputs, step, num_rows, num_in, number, preparation, row.data(), found);
        inputs = found;
    } else if (has_sums || !preparation.is_none()) {
        float *found = scratch.prepared.data();
        const int64_t num_groups = weight.num_groups();
#pragma omp for
        for (int64_t row = 0; row < num_rows; ++row) {
            const float *ready = inputs + row * step;
            if (!preparation.is_none()) {
                prepare(preparation, ready, num_in, found + row * num_in);
                ready = found + row * num_in;
            }
            if (has_sums)
                sum_groups(ready, num_groups, weight.group, sums + row * num_groups);
        }
        if (!preparation.is_none())
            inputs = found;
    }
    const int64_t number = omp_get_thread_num(), count = omp_get_num_threads();
    const int64_t num_panels = weight.num_panels();
    const int64_t first = num_panels * number / count, end = num_panels * (number + 1) / count;
    if (product.kind == INT8_PAIRS)
        whole_panels(weight, first, end, scratch.pairs.data(), scratch.steps.data(), num_rows,
                     start, outputs);
    const auto run = product.kind == FP32   ? panels<FP32>
                     : product.kind == BF16 ? panels<BF16>
                     : product.kind == INT8 ? panels<INT8>
                     : product.kind == FP8  ? panels<FP8>
                                            : panels<INT4>;
    if (product.kind != INT8_PAIRS)
        run(weight, first, end, inputs, num_rows, sums, start, outputs);
    if (preparation.is_bf16) {
        const int64_t column = first * WIDTH, until = std::min(end * WIDTH, num_out);
        for (int64_t row = 0; row < num_rows && column < until; ++row)
            round_all(outputs + row * num_out + column, until - column);
    }
#pragma omp barrier
}

} // namespace mux

// outputs [rows, out] = prepared inputs [rows, in] times the weight, plus bias and `added` where
// given.
extern "C" void mux_product(int kind, const uint8_t *values, const float *scales,
                            const float *zeros, int64_t num_in, int64_t num_out, int64_t group,
                            const float *inputs, int64_t num_rows, const float *norm, float eps,
                            int is_gated, int rounds, const float *bias, const float *added,
                            float *outputs, int num_threads) {
    using namespace mux;
    if (num_rows == 0)
        return;
    const Product product = {kind, {values, scales, zeros, num_in, num_out, group}, bias};
    const Preparation preparation = {norm, eps, is_gated != 0, rounds != 0, false};
    static thread_local Scratch kept;
    Scratch &scratch = kept; // of this thread, for all of the team
    scratch.fit(product, num_rows);
    // One or all: OpenMP's runtime ends the threads that a smaller number leaves over.
    const bool is_alone = num_rows * num_in * num_out < THREAD_WORK;
    const int threads = is_alone ? 1 : int(std::min(int64_t(num_threads), product.weight.num_panels()));
#pragma omp parallel num_threads(threads) if (threads > 1)
    product_by_team(product, inputs, num_rows, preparation, added, outputs, scratch);
    scratch.trim();
}
