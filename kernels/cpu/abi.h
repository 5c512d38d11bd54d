// The C interface of libllmrun_cpu. Plain types only: Python binds it with ctypes and checks LLMRUN_ABI first.
// Raise LLMRUN_ABI with every change to this file. Functions returning int give 0 for success; llmrun_error() says
// what failed in this thread.
#pragma once
#include <stdint.h>

#define LLMRUN_ABI 13
#define LLMRUN_MAX_WEIGHTS 4  // matrices one linear op multiplies the same input with
#define LLMRUN_OP_NUMBERS 16
#define LLMRUN_OP_POINTERS 16

#if defined(_WIN32)
#define LLMRUN_API __declspec(dllexport)
#else
#define LLMRUN_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Storage types, numbered as in GGUF; from 1000 on our own, which quantised safetensors are brought into (types.h).
enum LlmrunType {
  LLMRUN_F32 = 0,
  LLMRUN_F16 = 1,
  LLMRUN_Q4_0 = 2,
  LLMRUN_Q4_1 = 3,
  LLMRUN_Q5_0 = 6,
  LLMRUN_Q5_1 = 7,
  LLMRUN_Q8_0 = 8,
  LLMRUN_Q2_K = 10,
  LLMRUN_Q3_K = 11,
  LLMRUN_Q4_K = 12,
  LLMRUN_Q5_K = 13,
  LLMRUN_Q6_K = 14,
  LLMRUN_IQ2_XXS = 16,
  LLMRUN_IQ2_XS = 17,
  LLMRUN_IQ3_XXS = 18,
  LLMRUN_IQ1_S = 19,
  LLMRUN_IQ4_NL = 20,
  LLMRUN_IQ3_S = 21,
  LLMRUN_IQ2_S = 22,
  LLMRUN_IQ4_XS = 23,
  LLMRUN_I8 = 24,  // caches only: a scale for each token and head
  LLMRUN_IQ1_M = 29,
  LLMRUN_BF16 = 30,
  LLMRUN_TQ1_0 = 34,
  LLMRUN_TQ2_0 = 35,
  LLMRUN_MXFP4 = 39,
  LLMRUN_NVFP4 = 40,
  LLMRUN_Q1_0 = 41,
  LLMRUN_Q2_0 = 42,
  LLMRUN_I4_32 = 1000,
  LLMRUN_I4_128 = 1001,
  LLMRUN_I8_32 = 1002,
  LLMRUN_I8_128 = 1003,
  LLMRUN_F8_32 = 1004,
  LLMRUN_F8_128 = 1005,
};

// `grid`: the points of the codebook of IQ1, IQ2 and IQ3 types as i8, 8 (IQ3: 4) a point, all points of the type; 0 for
// all other types.
// Operations. n = numbers, p = pointers, f = floats, in the order listed; tensors are contiguous.
enum LlmrunCode {
  LLMRUN_EMBED = 0,        // n: R W type V            p: ids(i32) table(file layout) out grid|0
  LLMRUN_RMS_NORM = 1,     // n: R W                   p: x weight out        f: eps
  LLMRUN_QUANTIZE = 2,     // n: R K                   p: x blocks            flags: 2 = 16-bit activations
  LLMRUN_LINEAR = 3,       // n: R K count (N type)*   p: x blocks (packed out bias|0)*      flags: 1 = add to out, 2 = 16-bit activations
  LLMRUN_SILU_MUL = 4,     // n: count                 p: gate up out
  LLMRUN_ADD = 5,          // n: count                 p: a b out
  LLMRUN_ROPE_TABLE = 6,   // n: R pairs               p: positions frequencies cos sin axes|0   f: scale
                           // with axes i32 [pairs]: positions is [3, R], pair i turns by positions[axes[i]]
  LLMRUN_ROPE = 7,         // n: R H D pairs           p: x cos sin           flags: 1 = adjacent pairs
  // Keys and values may differ in type; scales f32 [P, K, page_tokens] for I8, else 0. Values may be Q4_1: a row is blocks
  // of 32 along D, the last one filled up.
  LLMRUN_KV_STORE = 8,     // n: R K D page_tokens P key_type value_type   p: k v keys values slots key_scales value_scales
  LLMRUN_ATTENTION = 9,    // n: R H K D page_tokens P B most_pages key_type value_type      f: scale
                           // p: q keys values positions sequences pages out key_scales value_scales firsts(i32[R])|0
                           // a row sees tokens firsts (or 0) .. positions of its sequence
  LLMRUN_GATHER = 10,      // n: rows W source_rows    p: x index out
  LLMRUN_ARGMAX = 11,      // n: R V                   p: x out(i32) share, or null
  LLMRUN_LOG_SOFTMAX = 12, // n: R V                   p: x out               (out may be x)
  LLMRUN_PACK = 13,        // n: rows cols type        p: source packed grid|0
  // Mixture of experts; S = R k slots sorted by expert, `plan` i32 [1 + 3 E], see core/experts.h.
  LLMRUN_EXPERT_ROUTE = 14,    // n: R E k             p: logits ids(i32) weights     flags: 4 = weights sum to 1
  LLMRUN_EXPERT_PLAN = 15,     // n: R k E             p: ids order(i32) place(i32) plan
  // columns i32 [E, K]: column j of an expert's matrices is column columns[e, j] of its input; 0: as they are.
  LLMRUN_EXPERT_INPUT = 16,    // n: R k K             p: x order plan out blocks|0 columns|0   flags: 2 = 16-bit activations
  LLMRUN_EXPERT_LINEAR = 17,   // n: S K E count (N type)*   p: x blocks|0 plan (packed[E] out)*
                               // n[9]: 1 = all slots read row 0 of x                 flags: 2 = 16-bit activations
  LLMRUN_EXPERT_HIDDEN = 18,   // n: S I               p: gate(also out) up plan blocks|0 columns[E, I]|0   flags: 2 = 16-bit activations
                               // (with columns the result in their order is in up)
  LLMRUN_EXPERT_COMBINE = 19,  // n: R k W             p: values place weights out    flags: 1 = add to out
  // Recurrent layers. S state slots, B sequences; p[0..2] = positions sequences (i32[R]) states (i32[B]: slot of each
  // sequence). Rows of a sequence are consecutive, and so are their positions; position 0 starts from zeros. Past inputs
  // and ids are rings by position: longer than what a row reads by as many rows as a step may run and then take back.
  LLMRUN_SHORT_CONV = 20,  // n: R S B C k dilation ring   p: .. x taps[k, C] past[S, ring, C]|0 out   flags: 1 = SiLU
  // N pending rows of a slot, or 0: a step may leave its last rows undecided. keep (i32[B]): how many rows of each sequence
  // are certain; fold (i32[B]): pending rows of the step before that turned out to count, taken up first.
  LLMRUN_DELTA_RULE = 21,  // n: R S B Hk Hv Dk Dv 0 N   p: .. qkv a b decay dt_bias state out pending[S, N, ..]|0 keep|0 fold|0
                           // flags: 1 = v-head h reads k-head h % Hk, else h / (Hv / Hk)
  LLMRUN_GATED_NORM = 22,  // n: R W                   p: x weight gate out   f: eps   flags: 1 = sigmoid, else SiLU
  LLMRUN_SIGMOID_MUL = 23, // n: count                 p: x gate out
  LLMRUN_ADD_SCALED = 24,  // n: R W                   p: x gate[R] out       (out += sigmoid(gate) x)
  LLMRUN_COLUMNS = 48,         // n: R K               p: x order(i32) out            out[r, k] = x[r, order[k]]
  // Image towers.
  LLMRUN_PUT_ROWS = 50,    // n: R W source_rows source_cols column   p: x index out   flags: 1 = add to out; index < 0: stays
  LLMRUN_LAYER_NORM = 51,  // n: R W                   p: x weight bias out   f: eps
  LLMRUN_GELU = 52,        // n: count                 p: x out               flags: 1 = tanh approximation
  // Drafters that work on blocks.
  LLMRUN_BLOCK_CONV = 53,  // n: R W taps groups side  p: x change[R, 2, taps, groups] base[2, taps, W] sequences(i32) out
  // Residual streams, hashed n-grams, block-sparse attention. G tokens of a block, k blocks, J rows of the table a token.
  LLMRUN_STREAM_NORM = 60,  // n: R S W                p: x weight[S, W] out   f: eps
  LLMRUN_SILU_SCALED = 61,  // n: count                p: x out               f: scale
  LLMRUN_STREAM_MIX = 62,   // n: R S W                p: x gate out[R, W]
  LLMRUN_STREAM_ADD = 63,   // n: R S W                p: y[R, W] gate[R, S] out
  LLMRUN_STREAM_GATE = 64,  // n: R S W                p: key query value[R, W] out
  LLMRUN_NGRAM_ROWS = 65,   // n: R history J B slots eos ring   p: ids positions sequences states past multipliers(i64) sizes(i64)
                            //                              offsets(i64) out(i32)
  LLMRUN_SHARD_ROWS = 66,   // n: R W type rows_of_a_shard shards   p: index tables[shards](file layout) out grid|0
  LLMRUN_INDEX_STORE = 67,  // n: R D page_tokens P G pairs B most_pages   p: keys raw blocks positions sequences slots pages
                            //                              norm frequencies   f: eps scale   flags: 1 = adjacent pairs
  LLMRUN_INDEX_SELECT = 68, // n: R H D page_tokens P G k B most_pages   p: q blocks positions sequences pages chosen dense
  LLMRUN_SPARSE_ATTENTION = 69,  // n: R H K D page_tokens P B most_pages type G k heads_of_a_unit
                            //                              p: q chosen keys values positions sequences pages out   f: scale
  LLMRUN_CODES = 70,
};

// Results of llmrun_program_run.
enum LlmrunStatus {
  LLMRUN_OK = 0,
  LLMRUN_BAD_ID = 1,        // embed: id outside the table
  LLMRUN_BAD_SLOT = 2,      // kv_store: slot outside the cache
  LLMRUN_BAD_ROW = 3,       // attention: position, sequence or page number out of range
  LLMRUN_BAD_INDEX = 4,     // gather, put_rows: index outside the rows
  LLMRUN_NO_MEMORY = 5,
  LLMRUN_BAD_PROGRAM = 6,
  LLMRUN_BAD_EXPERT = 7,    // expert_plan: id of no expert
  LLMRUN_BAD_STATE = 8,     // recurrent: a sequence or its slot out of range, its rows not consecutive, or keep or fold impossible
  LLMRUN_BAD_COLUMN = 9,    // columns: a column outside the row
};

typedef struct LlmrunOp {
  int32_t code;
  int32_t flags;
  int64_t n[LLMRUN_OP_NUMBERS];
  void* p[LLMRUN_OP_POINTERS];
  float f[4];
} LlmrunOp;

typedef struct LlmrunPool LlmrunPool;
typedef struct LlmrunProgram LlmrunProgram;

LLMRUN_API int32_t llmrun_abi(void);
LLMRUN_API const char* llmrun_error(void);

// Comma-separated names of the instruction sets this CPU and its operating system offer.
LLMRUN_API const char* llmrun_cpu_features(void);
// Comma-separated builds inside this library, slowest first, and the reason a build cannot run here ("" = it can).
LLMRUN_API const char* llmrun_builds(void);
LLMRUN_API const char* llmrun_build_refused(const char* build);

// `build` NULL takes the fastest usable one. NULL result: see llmrun_error().
LLMRUN_API LlmrunPool* llmrun_pool_create(int32_t threads, const char* build);
LLMRUN_API void llmrun_pool_destroy(LlmrunPool* pool);
LLMRUN_API const char* llmrun_pool_build(const LlmrunPool* pool);

// A program keeps the ops and their addresses; it must be destroyed before its pool. One run at a time per pool
// (others wait).
LLMRUN_API LlmrunProgram* llmrun_program_create(LlmrunPool* pool, const LlmrunOp* ops, int64_t count);
LLMRUN_API void llmrun_program_destroy(LlmrunProgram* program);
LLMRUN_API int32_t llmrun_program_run(LlmrunProgram* program);

// Bytes of a [rows, cols] matrix of `type`: of one row in file layout, and packed. -1: impossible shape or type.
LLMRUN_API int64_t llmrun_row_bytes(int32_t type, int64_t cols);
LLMRUN_API int64_t llmrun_packed_bytes(int32_t type, int64_t rows, int64_t cols);
// Bytes of the quantised form of x [rows, cols] (cols a multiple of 32) with 8 or 16 bits.
LLMRUN_API int64_t llmrun_quantized_bytes(int64_t rows, int64_t cols, int32_t bits);

// The k largest of values[count], descending, lowest index first among equals. Returns how many were written.
LLMRUN_API int64_t llmrun_top_k(const float* values, int64_t count, int64_t k, float* out_values, int32_t* out_ids);

// Ask for huge pages (a hint). Forget the resident pages of a read-only file mapping; returns the bytes released, 0
// when the range is anything else.
LLMRUN_API void llmrun_want_huge_pages(void* address, int64_t bytes);
LLMRUN_API int64_t llmrun_drop_mapped(void* address, int64_t bytes);

#ifdef __cplusplus
}
#endif
