/* Activity counters between two samples. */
#include "stub.h"

struct gpm { const struct gpu *gpu; int64_t at; };

struct gpm_support { unsigned version, supported; };

nvml_return nvmlGpmQueryDeviceSupport(const struct gpu *gpu, struct gpm_support *out) {
    BEGIN(gpu, 1);
    out->supported = (unsigned)has_gpm;
    return NVML_SUCCESS;
}

nvml_return nvmlGpmSampleAlloc(struct gpm **out) {
    BEGIN(NULL, 0);
    *out = calloc(1, sizeof **out);
    return NVML_SUCCESS;
}

nvml_return nvmlGpmSampleFree(struct gpm *sample) {
    BEGIN(NULL, 0);
    free(sample);
    return NVML_SUCCESS;
}

nvml_return nvmlGpmSampleGet(const struct gpu *gpu, struct gpm *sample) {
    BEGIN(gpu, 1);
    if (!has_gpm) return NVML_ERROR_NOT_SUPPORTED;
    *sample = (struct gpm){gpu, floor_to(now_ns(), GPM_STEP)};
    return NVML_SUCCESS;
}

nvml_return nvmlGpmMigSampleGet(const struct gpu *gpu, unsigned instance, struct gpm *sample) {
    BEGIN(gpu, 1);
    if (!has_gpm) return NVML_ERROR_NOT_SUPPORTED;
    const struct fault *cut = met("mig", gpu->index, "*");
    if (!cut || instance < 1 || instance > cut->number) return NVML_ERROR_INVALID_ARGUMENT;
    *sample = (struct gpm){gpu, floor_to(now_ns(), GPM_STEP)};
    return NVML_SUCCESS;
}

struct metric { unsigned id; nvml_return code; double value; const char *texts[3]; };
struct metrics { unsigned version, n; const struct gpm *first, *second; struct metric metrics[]; };

nvml_return nvmlGpmMetricsGet(struct metrics *request) {
    BEGIN(NULL, 0);
    takes_us(1630);
    const struct gpm *a = request->first, *b = request->second;
    if (request->version != 1 || !a || !b || !a->gpu || a->gpu != b->gpu) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < request->n; i++) {
        struct metric *m = &request->metrics[i];
        double part = m->id == NVML_GPM_METRIC_GRAPHICS_UTIL ? 1 : m->id == NVML_GPM_METRIC_SM_UTIL ? 0.8 : 0.25;
        m->code = b->at > a->at ? NVML_SUCCESS : NVML_ERROR_NO_DATA;
        m->value = 100 * part * busy_share(a->gpu, a->at, b->at);
    }
    return NVML_SUCCESS;
}
