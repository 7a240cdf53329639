// Weights of experts in MXFP4: elements of 4 bits (E2M1), of which 32 neighbours share a scale of 8
// bits (E8M0). They are widened to fp32, in which every one of them is exact, in registers where
// few rows read them.

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "team.h"

namespace mux {
namespace {

constexpr int64_t BLOCK = 32, BYTES = BLOCK / 2, LANES = 8;
constexpr int MOST_ROWS = 4;    // that a widened element is multiplied with
constexpr int64_t OUTPUTS = 16; // of a piece of work

// What the 4 bits of 8 elements stand for: a sign, and one of eight sizes.
inline __m256 of_e2m1(__m256i codes) {
    const __m256 sizes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(8)), 28);
    const __m256 size = _mm256_permutevar8x32_ps(sizes, codes); // reads three bits of each
    return _mm256_or_ps(size, _mm256_castsi256_ps(sign));
}

inline float power(uint8_t scale) {
    const uint32_t bits = scale == 255 ? 0x7fc00000u : scale ? uint32_t(scale) << 23 : 1u << 22;
    float found;
    std::memcpy(&found, &bits, 4);
    return found;
}

// The 32 elements of a block, in order.
inline void widen(const uint8_t *block, uint8_t scale, __m256 (&found)[4]) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(block));
    const __m128i half = _mm_set1_epi8(15);
    const __m128i even = _mm_and_si128(bytes, half);
    const __m128i odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), half);
    const __m128i first = _mm_unpacklo_epi8(even, odd), second = _mm_unpackhi_epi8(even, odd);
    const __m256 factor = _mm256_set1_ps(power(scale));
    const __m128i eights[4] = {first, _mm_srli_si128(first, 8), second, _mm_srli_si128(second, 8)};
    for (int part = 0; part < 4; ++part)
        found[part] = _mm256_mul_ps(of_e2m1(_mm256_cvtepu8_epi32(eights[part])), factor);
}

inline float sum_of(__m256 lanes) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}

// The product of `R` rows [R, in] and one output's elements; outputs are `step` apart.
template <int R>
void multiply(const uint8_t *blocks, const uint8_t *scales, int64_t num_in, const float *rows,
              float *outputs, int64_t step) {
    __m256 sums[R];
    for (__m256 &sum : sums)
        sum = _mm256_setzero_ps();
    for (int64_t block = 0; block < num_in / BLOCK; ++block) {
        __m256 elements[4];
        widen(blocks + block * BYTES, scales[block], elements);
        for (int row = 0; row < R; ++row) {
            const float *at = rows + row * num_in + block * BLOCK;
            for (int part = 0; part < 4; ++part)
                sums[row] = _mm256_fmadd_ps(_mm256_loadu_ps(at + part * LANES), elements[part],
                                            sums[row]);
        }
    }
    for (int row = 0; row < R; ++row)
        outputs[row * step] = sum_of(sums[row]);
}

// Outputs `first` to `end` of all rows of one expert.
void multiply_rows(const uint8_t *blocks, const uint8_t *scales, int64_t num_in, int64_t num_out,
                   int64_t first, int64_t end, const float *rows, int64_t num_rows,
                   float *outputs) {
    using Multiply = void (*)(const uint8_t *, const uint8_t *, int64_t, const float *, float *,
                              int64_t);
    constexpr Multiply sizes[MOST_ROWS + 1] = {nullptr, multiply<1>, multiply<2>, multiply<3>,
                                               multiply<4>};
    for (int64_t output = first; output < end; ++output)
        for (int64_t row = 0; row < num_rows; row += MOST_ROWS)
            sizes[std::min<int64_t>(MOST_ROWS, num_rows - row)](
                blocks + output * (num_in / 2), scales + output * (num_in / BLOCK), num_in,
                rows + row * num_in, outputs + row * num_out + output, num_out);
}

} // namespace
} // namespace mux

// found [rows, in], fp32, of blocks [rows, in / 2] and scales [rows, in / 32].
extern "C" void mux_mxfp4_widen(const uint8_t *blocks, const uint8_t *scales, int64_t num_rows,
                                int64_t num_in, float *found) {
    for (int64_t block = 0; block < num_rows * num_in / mux::BLOCK; ++block) {
        __m256 elements[4];
        mux::widen(blocks + block * mux::BYTES, scales[block], elements);
        for (int part = 0; part < 4; ++part)
            _mm256_storeu_ps(found + block * mux::BLOCK + part * mux::LANES, elements[part]);
    }
}

// outputs [rows, out] of inputs [rows, in], both fp32, and the weights of their experts: blocks
// [experts, out, in / 2], scales [experts, out, in / 32]. Expert e has rows offsets[e] to
// offsets[e + 1]; the outputs of experts with more than `most_rows` are left as they are.
extern "C" void mux_mxfp4_product(const uint8_t *blocks, const uint8_t *scales,
                                  int64_t num_experts, int64_t num_out, int64_t num_in,
                                  const int64_t *offsets, int64_t most_rows, const float *inputs,
                                  float *outputs, int num_threads) {
    static thread_local std::vector<int64_t> kept;
    std::vector<int64_t> &chosen = kept; // of this thread, for all of the team
    chosen.clear();
    int64_t num_rows = 0;
    for (int64_t expert = 0; expert < num_experts; ++expert) {
        const int64_t count = offsets[expert + 1] - offsets[expert];
        if (count > 0 && count <= most_rows) {
            chosen.push_back(expert);
            num_rows += count;
        }
    }
    const int64_t pieces = (num_out + mux::OUTPUTS - 1) / mux::OUTPUTS;
    const int threads = num_rows * num_in * num_out < mux::THREAD_WORK ? 1 : num_threads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
    for (int64_t place = 0; place < int64_t(chosen.size()) * pieces; ++place) {
        const int64_t expert = chosen[size_t(place / pieces)];
        const int64_t output = place % pieces * mux::OUTPUTS, begin = offsets[expert];
        mux::multiply_rows(blocks + expert * num_out * (num_in / 2),
                           scales + expert * num_out * (num_in / mux::BLOCK), num_in, num_out,
                           output, std::min(num_out, output + mux::OUTPUTS),
                           inputs + begin * num_in, offsets[expert + 1] - begin,
                           outputs + begin * num_out);
    }
}
