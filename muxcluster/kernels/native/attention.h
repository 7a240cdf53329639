// Attention of one new token over keys and values in the pool, for a team of OpenMP's threads.

#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

namespace mux {

// How keys and values are stored; the type that stands for it in templates.
enum Stored { FP32, BF16, INT8, FP8 }; // float, uint16_t, int8_t, uint8_t

// Where a layer's tokens lie. A block holds keys, then values of `block_tokens` tokens of one head;
// sequences fill it from its first place or, where `from_right` says so, from its last.
struct Layer {
    uint8_t *pool;
    int64_t block_bytes, block_tokens, head_dim;
    const int32_t *table; // of sequence s and head h: row s * per_sequence + h * per_head
    int64_t per_sequence, per_head;
    const bool *from_right;

    // The place of a token's key; its value lies half a block behind it.
    template <typename Element>
    Element *key(int64_t sequence, int64_t head, int64_t position) const {
        const int64_t column = position / block_tokens, offset = position % block_tokens;
        const int64_t block = table[sequence * per_sequence + head * per_head + column];
        const int64_t place = from_right[sequence] ? block_tokens - 1 - offset : offset;
        return reinterpret_cast<Element *>(pool + block * block_bytes) + place * slot<Element>();
    }
    // Elements from one key or value to the next: behind those of int8 lies a scale in fp32.
    template <typename Element> int64_t slot() const {
        return head_dim + (std::is_same_v<Element, int8_t> ? 4 : 0);
    }
    template <typename Element> int64_t half() const {
        return block_bytes / 2 / int64_t(sizeof(Element));
    }
};

// Attention of the queries [group, head_dim] of one row that share a KV head, over its positions
// `begin` to `end`. scores: scratch memory of this thread. outputs: like the queries. log_sums:
// [group], logarithms of the sums of exponentials, or none.
void attend_row(int stored, const Layer &layer, int64_t sequence, int64_t head, int64_t begin,
                int64_t end, int64_t group, float scale, float soft_cap, const float *queries,
                std::vector<float> &scores, float *outputs, float *log_sums);

// Write a token's key and value of one head, fp32 [head_dim].
void write_head(int stored, const Layer &layer, int64_t sequence, int64_t head, int64_t position,
                const float *key, const float *value);

// Turn neighbouring pairs of a head's elements in place, by complex numbers [head_dim / 2].
void turn_head(float *pair, int64_t head_dim, const float *turns);

} // namespace mux
