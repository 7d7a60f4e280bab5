/* NVML as a whole, and how a device is found. */
#include "stub.h"

nvml_return nvmlInitWithFlags(unsigned flags) {
    BEGIN(NULL, 0);
    if (!started++) list_gpus();
    return NVML_SUCCESS;
}

nvml_return nvmlShutdown(void) {
    BEGIN(NULL, 0);
    started--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvml_return code) { return code ? "Stub Error" : "Success"; }

nvml_return nvmlSystemGetDriverVersion(char *text, unsigned size) {
    BEGIN(NULL, 0);
    snprintf(text, size, "580.126-stub");
    return NVML_SUCCESS;
}

nvml_return nvmlSystemGetNVMLVersion(char *text, unsigned size) {
    BEGIN(NULL, 0);
    snprintf(text, size, "13.580.126-stub");
    return NVML_SUCCESS;
}

nvml_return nvmlSystemGetCudaDriverVersion_v2(int *out) {
    BEGIN(NULL, 0);
    *out = 13000;
    return NVML_SUCCESS;
}

struct confidential { unsigned environment, feature, tools; };

nvml_return nvmlSystemGetConfComputeState(struct confidential *out) {
    BEGIN(NULL, 0);
    *out = (struct confidential){NVML_CC_SYSTEM_ENVIRONMENT_PROD, NVML_CC_SYSTEM_FEATURE_ENABLED, 0};
    return NVML_SUCCESS;
}

nvml_return nvmlDeviceGetCount_v2(unsigned *out) {
    BEGIN(NULL, 0);
    *out = (unsigned)present();
    return NVML_SUCCESS;
}

static nvml_return hand_out(const struct gpu *gpu, const char *function, const struct gpu **out) {
    hang(gpu->index, function);
    if (met("lost", gpu->index, function)) return NVML_ERROR_GPU_IS_LOST;
    const struct fault *f = met("error", gpu->index, function);
    if (f) return (nvml_return)f->number;
    *out = gpu;
    return NVML_SUCCESS;
}

nvml_return nvmlDeviceGetHandleByIndex_v2(unsigned index, const struct gpu **out) {
    BEGIN(NULL, 0);
    return index < (unsigned)present() ? hand_out(at(index), __func__, out) : NVML_ERROR_INVALID_ARGUMENT;
}

nvml_return nvmlDeviceGetHandleByUUID(const char *uuid, const struct gpu **out) {
    BEGIN(NULL, 0);
    unsigned slice, gpu;
    const struct gpu *found = NULL;
    if (sscanf(uuid, "GPU-57ab0000-0000-0000-0000-%12u", &gpu) == 1 && gpu < (unsigned)count) found = &gpus[gpu];
    if (sscanf(uuid, "MIG-57ab0000-0000-0000-%4u-%12u", &slice, &gpu) == 2 && gpu < (unsigned)count && slice &&
        slice <= MOST_SLICES)
        found = &slices[gpu * MOST_SLICES + slice - 1];
    const struct fault *cut = found && found->slice ? met("mig", found->index, "*") : NULL;
    if (!found || gone(found->index) || (found->slice && !(cut && found->slice <= cut->number)))
        return NVML_ERROR_NOT_FOUND;
    return hand_out(found, __func__, out);
}
