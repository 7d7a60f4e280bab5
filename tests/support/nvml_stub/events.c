/* XID events, from the lines of the control file. */
#include "stub.h"

struct set { uint64_t watched; int generation, next, told; };

DEVICE(nvmlDeviceGetSupportedEventTypes, ull *out) {
    BEGIN(gpu, 1);
    *out = nvmlEventTypeXidCriticalError;
    return NVML_SUCCESS;
}

nvml_return nvmlEventSetCreate(struct set **out) {
    BEGIN(NULL, 0);
    *out = calloc(1, sizeof **out);
    return NVML_SUCCESS;
}

nvml_return nvmlEventSetFree(struct set *set) {
    BEGIN(NULL, 0);
    free(set);
    return NVML_SUCCESS;
}

nvml_return nvmlDeviceRegisterEvents(const struct gpu *gpu, ull types, struct set *set) {
    BEGIN(gpu, 1);
    set->watched |= 1ULL << gpu->index;
    return NVML_SUCCESS;
}

struct event { const struct gpu *gpu; ull type, data; unsigned instance, compute; };

nvml_return nvmlEventSetWait_v2(struct set *set, struct event *out, unsigned timeout_ms) {
    BEGIN(NULL, 0);
    if (set->generation != generation) {
        set->generation = generation;
        set->next = set->told = 0;
    }
    while (set->next < fault_count) {
        const struct fault *f = &faults[set->next];
        if (!strcmp(f->kind, "xid") && f->gpu >= 0 && set->watched >> f->gpu & 1 && set->told++ < f->times) {
            *out = (struct event){&gpus[f->gpu], nvmlEventTypeXidCriticalError, (ull)f->number, ~0u, ~0u};
            return NVML_SUCCESS;
        }
        set->next++;
        set->told = 0;
    }
    if (timeout_ms) sleep_ns((int64_t)timeout_ms * 1000000);
    return NVML_ERROR_TIMEOUT;
}
