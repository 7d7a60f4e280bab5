/* One device: what it is, how busy it is, its memory and its processes. */
#include "stub.h"

DEVICE(nvmlDeviceGetUUID, char *text, unsigned size) {
    BEGIN(gpu, 1);
    if (gpu->slice)
        snprintf(text, size, "MIG-57ab0000-0000-0000-%04d-%012d", gpu->slice, gpu->index);
    else
        snprintf(text, size, "GPU-57ab0000-0000-0000-0000-%012d", gpu->index);
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetName, char *text, unsigned size) {
    BEGIN(gpu, 1);
    snprintf(text, size, gpu->slice ? "Stub GPU 80GB MIG 1g.10gb" : "Stub GPU 80GB");
    return NVML_SUCCESS;
}

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

DEVICE(nvmlDeviceGetPciInfo_v3, struct pci *out) {
    BEGIN(gpu, 1);
    memset(out, 0, sizeof *out);
    out->bus = 0x10 + (unsigned)gpu->index;
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return NVML_SUCCESS;
}

NUMBER(nvmlDeviceGetIndex, index_of(gpu))
NUMBER(nvmlDeviceGetMinorNumber, gpu->index)
NUMBER(nvmlDeviceGetPowerUsage, power_mw(gpu, now_ns(), SECOND))
NUMBER(nvmlDeviceGetMaxMigDeviceCount, MOST_SLICES)
NUMBER(nvmlDeviceGetGpuInstanceId, gpu->slice)

DEVICE(nvmlDeviceGetMigMode, unsigned *current, unsigned *pending) {
    BEGIN(gpu, 1);
    *current = *pending = !gpu->slice && met("mig", gpu->index, "*") ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetMigDeviceHandleByIndex, unsigned index, const struct gpu **out) {
    BEGIN(gpu, 1);
    const struct fault *cut = met("mig", gpu->index, "*");
    if (!cut || gpu->slice || index >= MOST_SLICES || index >= cut->number) return NVML_ERROR_NOT_FOUND;
    *out = &slices[gpu->index * MOST_SLICES + (int)index];
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, const struct gpu **out) {
    BEGIN(gpu, 1);
    *out = &gpus[gpu->index];
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetUtilizationRates, unsigned *out) {
    BEGIN(gpu, 1);
    out[0] = utilization_at(gpu, floor_to(now_ns(), STEP));
    out[1] = out[0] / 2;
    return NVML_SUCCESS;
}

static nvml_return no_video(unsigned *share, unsigned *period_us) {
    *share = 0;
    *period_us = (unsigned)(STEP / 1000);
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetEncoderUtilization, unsigned *share, unsigned *period_us) {
    BEGIN(gpu, 1);
    return no_video(share, period_us);
}

DEVICE(nvmlDeviceGetJpgUtilization, unsigned *share, unsigned *period_us) {
    BEGIN(gpu, 1);
    return no_video(share, period_us);
}

DEVICE(nvmlDeviceGetOfaUtilization, unsigned *share, unsigned *period_us) {
    BEGIN(gpu, 1);
    return no_video(share, period_us);
}

DEVICE(nvmlDeviceGetDecoderUtilization, unsigned *share, unsigned *period_us) {
    BEGIN(gpu, 1);
    return no_video(share, period_us);
}

struct memory { ull total, free, used; };

DEVICE(nvmlDeviceGetMemoryInfo, struct memory *out) {
    BEGIN(gpu, 1);
    out->total = MEMORY;
    out->used = memory_used(gpu) + RESERVED;
    out->free = MEMORY - out->used;
    return NVML_SUCCESS;
}

struct memory2 { unsigned version; ull total, reserved, free, used; };

DEVICE(nvmlDeviceGetMemoryInfo_v2, struct memory2 *out) {
    BEGIN(gpu, 1);
    if (out->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    out->total = MEMORY;
    out->reserved = RESERVED;
    out->used = memory_used(gpu);
    out->free = MEMORY - RESERVED - out->used;
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetTotalEnergyConsumption, ull *out) {
    BEGIN(gpu, 1);
    *out = energy_mj(gpu, now_ns());
    return NVML_SUCCESS;
}

struct process { unsigned pid; ull memory; unsigned instance, compute; };

static nvml_return one_process(const struct gpu *gpu, unsigned *n, struct process *out) {
    unsigned room = *n;
    *n = 1;
    if (!room || !out) return NVML_ERROR_INSUFFICIENT_SIZE;
    out[0] = (struct process){4000 + (unsigned)gpu->index, memory_used(gpu), ~0u, ~0u};
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetComputeRunningProcesses_v3, unsigned *n, struct process *out) {
    BEGIN(gpu, 1);
    return one_process(gpu, n, out);
}

/* The same one: it draws too. */
DEVICE(nvmlDeviceGetGraphicsRunningProcesses_v3, unsigned *n, struct process *out) {
    BEGIN(gpu, 1);
    return one_process(gpu, n, out);
}

struct process_utilization { unsigned pid; ull stamp_us; unsigned sm, memory, encoder, decoder; };

DEVICE(nvmlDeviceGetProcessUtilization, struct process_utilization *out, unsigned *n, ull last_us) {
    BEGIN(gpu, 1);
    int64_t end = floor_to(now_ns(), STEP), start = floor_to((int64_t)last_us * 1000, STEP);
    if (start < end - BUFFERED * STEP) start = end - BUFFERED * STEP;
    unsigned room = *n, share = (unsigned)(100 * busy_share(gpu, start, end) + 0.5);
    if (!share) return NVML_ERROR_NOT_FOUND;
    *n = 1;
    if (!room || !out) return NVML_ERROR_INSUFFICIENT_SIZE;
    out[0] = (struct process_utilization){4000 + (unsigned)gpu->index, (ull)(end / 1000), share, share / 2, 0, 0};
    return NVML_SUCCESS;
}
