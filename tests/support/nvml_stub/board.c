/* The board of a device: its link, limits, clocks, fan, fabric and memory errors. */
#include "stub.h"

DEVICE(nvmlDeviceGetVbiosVersion, char *text, unsigned size) {
    BEGIN(gpu, 1);
    snprintf(text, size, "96.00.00.00.01");
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetBoardPartNumber, char *text, unsigned size) {
    BEGIN(gpu, 1);
    snprintf(text, size, "900-00000-0000-000");
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetCudaComputeCapability, int *major, int *minor) {
    BEGIN(gpu, 1);
    *major = 9;
    *minor = 0;
    return NVML_SUCCESS;
}

NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, 700000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, 700000)
NUMBER(nvmlDeviceGetFanSpeed, 40 + gpu->index)
NUMBER(nvmlDeviceGetPerformanceState, 0)

DEVICE(nvmlDeviceGetPowerManagementLimitConstraints, unsigned *lowest, unsigned *highest) {
    BEGIN(gpu, 1);
    *lowest = 200000;
    *highest = 700000;
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetTemperature, unsigned sensor, unsigned *out) {
    BEGIN(gpu, 1);
    if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    *out = 40 + (unsigned)gpu->index;
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetTemperatureThreshold, unsigned kind, unsigned *out) {
    BEGIN(gpu, 1);
    if (kind > NVML_TEMPERATURE_THRESHOLD_GPU_MAX) return NVML_ERROR_NOT_SUPPORTED;
    *out = 95 - kind;
    return NVML_SUCCESS;
}

struct margin { unsigned version; int margin; };

DEVICE(nvmlDeviceGetMarginTemperature, struct margin *out) {
    BEGIN(gpu, 1);
    if (out->version != nvmlMarginTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    out->margin = 2 - 3 * gpu->index; /* beyond the limit from the second GPU on */
    return NVML_SUCCESS;
}

static nvml_return clock_mhz(unsigned domain, unsigned *out) {
    *out = domain == NVML_CLOCK_MEM ? 2619 : domain == NVML_CLOCK_VIDEO ? 1755 : 1980;
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetClockInfo, unsigned domain, unsigned *out) {
    BEGIN(gpu, 1);
    return clock_mhz(domain, out);
}

DEVICE(nvmlDeviceGetMaxClockInfo, unsigned domain, unsigned *out) {
    BEGIN(gpu, 1);
    return clock_mhz(domain, out);
}

DEVICE(nvmlDeviceGetCurrentClocksEventReasons, ull *out) {
    BEGIN(gpu, 1);
    *out = busy_share(gpu, now_ns() - 1, now_ns()) > 0 ? nvmlClocksEventReasonSwPowerCap : nvmlClocksEventReasonGpuIdle;
    return NVML_SUCCESS;
}

struct bar1 { ull total, free, used; };

DEVICE(nvmlDeviceGetBAR1MemoryInfo, struct bar1 *out) {
    BEGIN(gpu, 1);
    *out = (struct bar1){128ULL << 30, (128ULL << 30) - (2ULL << 20), 2ULL << 20};
    return NVML_SUCCESS;
}

struct fabric {
    unsigned version;
    unsigned char cluster[16];
    nvml_return status;
    unsigned clique;
    unsigned char state;
    unsigned health;
    unsigned char summary; /* since version 3 */
};

DEVICE(nvmlDeviceGetGpuFabricInfoV, struct fabric *out) {
    BEGIN(gpu, 1);
    if (out->version == nvmlGpuFabricInfo_v3) out->summary = 1;
    else if (out->version != nvmlGpuFabricInfo_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    out->state = NVML_GPU_FABRIC_STATE_COMPLETED;
    out->status = NVML_SUCCESS;
    out->health = 0xAA;
    return NVML_SUCCESS;
}

DEVICE(nvmlDeviceGetMemoryErrorCounter, unsigned kind, unsigned aggregate, unsigned place, ull *out) {
    BEGIN(gpu, 1);
    if (place != NVML_MEMORY_LOCATION_SRAM) return NVML_ERROR_NOT_SUPPORTED;
    *out = 10 * kind + aggregate; /* each of the four its own */
    return NVML_SUCCESS;
}

struct sram { unsigned version; ull totals[6], l2, sm, pcie, mcu, other; unsigned exceeded; };

DEVICE(nvmlDeviceGetSramEccErrorStatus, struct sram *out) {
    BEGIN(gpu, 1);
    if (out->version != nvmlEccSramErrorStatus_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    out->l2 = 1;
    out->sm = 2;
    out->pcie = 3;
    out->mcu = 4;
    out->other = 5;
    out->exceeded = 1;
    return NVML_SUCCESS;
}

/* Row remapper: memory banks with all, most, some, few and none of their spare rows. */
struct spare_rows { unsigned max, high, partial, low, none; };

DEVICE(nvmlDeviceGetRowRemapperHistogram, struct spare_rows *out) {
    BEGIN(gpu, 1);
    *out = (struct spare_rows){2550, 4, 3, 2, 1};
    return NVML_SUCCESS;
}

struct repair { unsigned version, channel, tpc; };

DEVICE(nvmlDeviceGetRepairStatus, struct repair *out) {
    BEGIN(gpu, 1);
    if (out->version != nvmlRepairStatus_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    out->channel = 1;
    out->tpc = 0;
    return NVML_SUCCESS;
}

struct addressing { unsigned version, mode; };

DEVICE(nvmlDeviceGetAddressingMode, struct addressing *out) {
    BEGIN(gpu, 1);
    if (out->version != nvmlDeviceAddressingMode_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    out->mode = NVML_DEVICE_ADDRESSING_MODE_ATS;
    return NVML_SUCCESS;
}
