/* The sample buffers and the field values of a device. */
#include "stub.h"

struct sample { ull at_us; ull value; };

DEVICE(nvmlDeviceGetSamples, unsigned kind, ull after_us, unsigned *type, unsigned *n, struct sample *out) {
    BEGIN(gpu, 1);
    int power = kind == NVML_TOTAL_POWER_SAMPLES;
    if (!power && kind != NVML_GPU_UTILIZATION_SAMPLES && kind != NVML_MEMORY_UTILIZATION_SAMPLES)
        return NVML_ERROR_NOT_SUPPORTED;
    int64_t step = power ? POWER_STEP : STEP, newest = floor_to(now_ns(), step);
    *type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (!out) { /* how many there may be at most, whatever is new */
        *n = BUFFERED;
        return NVML_SUCCESS;
    }
    takes_us(power ? 330 : 2690);
    if ((ull)newest / 1000 <= after_us) return NVML_ERROR_NOT_FOUND;
    unsigned taken = 0;
    for (int64_t at = newest - (BUFFERED - 1) * step; at <= newest && taken < *n; at += step) {
        if ((ull)at / 1000 <= after_us) continue;
        unsigned value = power ? power_mw(gpu, at, POWER_WINDOW) : utilization_at(gpu, at);
        if (kind == NVML_MEMORY_UTILIZATION_SAMPLES) value /= 2;
        out[taken].at_us = (ull)stamp_us(gpu, __func__, at / 1000);
        out[taken++].value = value;
    }
    *n = taken;
    return NVML_SUCCESS;
}

struct field {
    uint32_t id, scope;
    int64_t at_us, latency_us;
    unsigned type;
    nvml_return code;
    union { unsigned u; ull ull; } value;
};

static nvml_return plain(struct field *f, unsigned value) {
    f->type = NVML_VALUE_TYPE_UNSIGNED_INT;
    f->value.u = value;
    return NVML_SUCCESS;
}

static nvml_return below(struct field *f, int value) {
    f->type = NVML_VALUE_TYPE_SIGNED_INT;
    f->value.u = (unsigned)value;
    return NVML_SUCCESS;
}

/* The module draws 120 W beside the GPU, its memory a quarter of it. */
static unsigned scoped(unsigned milliwatts, unsigned scope) {
    return scope == NVML_POWER_SCOPE_MODULE ? milliwatts + 120000 : scope == NVML_POWER_SCOPE_MEMORY ? milliwatts / 4 : milliwatts;
}

/* Memory errors, retired pages, remapped rows, and errors of the links as a whole: all of them have a number. */
static int counts_errors(unsigned id) {
    return (id >= NVML_FI_DEV_ECC_SBE_VOL_TOTAL && id <= NVML_FI_DEV_RETIRED_PENDING) ||
           (id >= NVML_FI_DEV_REMAPPED_COR && id <= NVML_FI_DEV_REMAPPED_FAILURE) ||
           (id >= NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS && id <= NVML_FI_DEV_PCIE_COUNT_LANE_ERROR) ||
           id == NVML_FI_DEV_PCIE_REPLAY_COUNTER || id == NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL ||
           id == NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL || id == NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL ||
           id == NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL;
}

static nvml_return read_field(const struct gpu *gpu, int64_t now, struct field *f) {
    ull busy = (ull)(busy_until(gpu, now) - (epoch(gpu) == LOADED ? 0 : busy_until(gpu, epoch(gpu))));
    const struct fault *fault = met_field("field", gpu->index, f->id);
    if (fault) return (nvml_return)fault->number;
    f->type = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    if ((fault = met_field("value", gpu->index, f->id))) {
        f->value.ull = (ull)fault->number;
        return NVML_SUCCESS;
    }
    switch (f->id) {
    case NVML_FI_DEV_POWER_INSTANT: f->value.ull = scoped(power_mw(gpu, now, POWER_WINDOW), f->scope); break;
    case NVML_FI_DEV_POWER_AVERAGE: f->value.ull = scoped(power_mw(gpu, now, SECOND), f->scope); break;
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: f->value.ull = energy_mj(gpu, now); break;
    case NVML_FI_DEV_PCIE_COUNT_RX_BYTES: f->value.ull = (busy / 1000) & 0xFFFFFFFF; break; /* 1 MB per busy ms */
    case NVML_FI_DEV_PCIE_COUNT_TX_BYTES: f->value.ull = (busy / 4000) & 0xFFFFFFFF; break;
    case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
    case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX:
        if (f->scope != ~0u && f->scope >= NVLINKS) return NVML_ERROR_INVALID_ARGUMENT;
        f->value.ull = busy / 100 / (f->scope == ~0u ? 1 : NVLINKS); /* KiB */
        break;
    case NVML_FI_DEV_PERF_POLICY_POWER: f->value.ull = busy / 10; break; /* ns */
    case NVML_FI_DEV_MEMORY_TEMP: return plain(f, 50);
    case NVML_FI_DEV_NVLINK_LINK_COUNT: return plain(f, NVLINKS);
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: return plain(f, 25000);
    case NVML_FI_DEV_NVLINK_GET_STATE: return f->scope < NVLINKS ? plain(f, 1) : NVML_ERROR_INVALID_ARGUMENT;
    case NVML_FI_DEV_C2C_LINK_COUNT: return plain(f, C2C_LINKS);
    case NVML_FI_DEV_C2C_LINK_GET_STATUS: return f->scope < C2C_LINKS ? plain(f, 1) : NVML_ERROR_INVALID_ARGUMENT;
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING:
    case NVML_FI_DEV_PENDING_BANK_REMAPPING:
    case NVML_FI_PWR_SMOOTHING_ENABLED: return plain(f, 1);
    case NVML_FI_DEV_MMA_STALL_PERCENT: return plain(f, 30);
    case NVML_FI_DEV_ACTIVE_BANK_REMAPPINGS: return plain(f, 3);
    case NVML_FI_DEV_INACTIVE_BANK_REMAPPINGS: return plain(f, 2);
    case NVML_FI_DEV_BANK_REMAPPER_HISTOGRAM_MAX: return plain(f, 60);
    case NVML_FI_DEV_BANK_REMAPPER_HISTOGRAM_NONE: return plain(f, 4);
    case NVML_FI_DEV_POWER_MIN_LIMIT: return plain(f, 200000);
    case NVML_FI_DEV_POWER_MAX_LIMIT:
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT:
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT: return plain(f, 700000);
    case NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT: return below(f, -8);
    case NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT: return below(f, -2);
    case NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT:
    case NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT: return below(f, 0);
    case NVML_FI_DEV_NVLINK_ERROR_DL_CRC:
    case NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY:
    case NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY:
    case NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS:
    case NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS:
        if (f->scope >= NVLINKS) return NVML_ERROR_INVALID_ARGUMENT;
        f->value.ull = f->scope; /* the link's number, so that a mix-up shows */
        break;
    case NVML_FI_DEV_C2C_LINK_ERROR_INTR:
    case NVML_FI_DEV_C2C_LINK_ERROR_REPLAY:
    case NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B:
        if (f->scope >= C2C_LINKS) return NVML_ERROR_INVALID_ARGUMENT;
        f->value.ull = f->scope;
        break;
    case NVML_FI_DEV_PERF_POLICY_THERMAL:
    case NVML_FI_DEV_PERF_POLICY_SYNC_BOOST:
    case NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT:
    case NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION:
    case NVML_FI_DEV_PERF_POLICY_RELIABILITY:
    case NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS:
    case NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS:
    /* NVML_FI_DEV_CLOCKS_EVENT_REASON_* as drivers from 580.82 on number them, whatever the binding says. */
    case 269:
    case 270:
    case 271:
    case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: f->value.ull = 0; break;
    default:
        if (!counts_errors(f->id)) return NVML_ERROR_NOT_SUPPORTED;
        f->value.ull = 0;
    }
    return NVML_SUCCESS;
}

static double field_us(unsigned id) {
    switch (id) {
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: return 2910;
    case NVML_FI_DEV_PCIE_COUNT_TX_BYTES: return 113;
    case NVML_FI_DEV_PCIE_COUNT_RX_BYTES: return 79;
    case 270: return 496;
    case 271: return 417;
    default: return 2.6;
    }
}

DEVICE(nvmlDeviceGetFieldValues, int n, struct field *fields) {
    BEGIN(gpu, 1);
    int64_t now = now_ns();
    for (int i = 0; i < n; i++) {
        fields[i].at_us = stamp_us(gpu, __func__, now / 1000);
        fields[i].latency_us = 1;
        takes_us(field_us(fields[i].id));
        fields[i].code = read_field(gpu, now, &fields[i]);
    }
    return NVML_SUCCESS;
}
