// Products of rows in fp32 by weights in panels, for a team of OpenMP's threads.

#pragma once

#include <cstdint>
#include <vector>

namespace mux {

constexpr int64_t WIDTH = 16; // outputs of a panel: two registers of fp32

struct Weight {
    const uint8_t *values; // [panels, inputs, bytes of an input]
    const float *scales;   // [panels, groups, 16]; of fp32 and bf16 none
    const float *zeros;    // like `scales`, or none: 8 for 4 bits, else 0
    int64_t num_in, num_out, group;

    int64_t num_panels() const { return (num_out + WIDTH - 1) / WIDTH; }
    int64_t num_groups() const { return num_in / group; }
};

struct Product {
    int kind; // of the elements: `Kind` of products.cpp
    Weight weight;
    const float *bias; // [out], or none
};

// What is done to each row before it is multiplied, in this order.
struct Preparation {
    const float *norm; // weight of the norm, or none
    float eps;
    bool is_gated; // rows are [gate, up]
    bool rounds;   // to 8 bits
    bool is_bf16;  // numbers are rounded to bf16 as a model in bf16 does, those that come out, too

    bool is_none() const { return !norm && !is_gated && !rounds; }
};

// Memory of a product, for all threads of a team; made large enough before they start.
struct Scratch {
    std::vector<float> prepared, blocks, sums, steps;
    std::vector<int32_t> pairs;

    void fit(const Product &product, int64_t num_rows);
    void trim(); // let go of much memory
};

// outputs [rows, out] = prepared inputs [rows, in] times the weight, plus bias and `added` where
// given, which may be `outputs`. All threads of the team call it; all is done when one returns.
void product_by_team(const Product &product, const float *inputs, int64_t num_rows,
                     const Preparation &preparation, const float *added, float *outputs,
                     Scratch &scratch);

// found [inputs] = one row of `given`, prepared.
void prepare(const Preparation &preparation, const float *given, int64_t num_in, float *found);

// found [inputs] = a row, which may be `found`, over the root of its mean square, times a weight.
void norm_row(const float *row, int64_t num_in, const float *weight, float eps, bool is_bf16,
              float *found);

} // namespace mux
