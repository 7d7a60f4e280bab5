"""The recording rules of money and carbon for LLM serving, and their inputs: prices and the intensity of the grid.

The inputs are in a file of their own, so that a team replaces them without a change to the rules.
"""

from __future__ import annotations

from typing import Final

from queries import by, named, rate, series
from rulefiles import Group, Recording

from gpu_profile.catalogue.serving import (
    SERVING_DEVICE,
    SERVING_DEVICE_TIME,
    SERVING_ENERGY,
    SERVING_TOKENS,
    SERVING_UNALLOCATED,
)

#: Examples, in any currency: what one hour of a GPU costs, by the name that the driver gives it.
_PRICES: Final = {
    "NVIDIA H200": 3.5,
    "NVIDIA H100 80GB HBM3": 2.5,
    "NVIDIA A100-SXM4-80GB": 1.5,
    "NVIDIA A10G": 0.8,
    "NVIDIA L4": 0.6,
}
#: An example: grams of CO2 equivalent for a kWh, with the overhead of the building.
_GRAMS_PER_KWH: Final = 400
_J_PER_KWH: Final = 3_600_000
_KEYS: Final = "instance, engine, tenant, phase"

PRICE: Final = "hw_name:gpu_profile_price:per_device_hour"
GRID: Final = "gpu_profile_grid_intensity:grams_per_kwh"
ENGINE_PRICE: Final = "instance_engine:gpu_profile_price:per_device_second"
COST: Final = "instance_engine_tenant_phase:gpu_profile_serving_cost:rate5m"
UNALLOCATED_COST: Final = "instance_engine:gpu_profile_serving_cost_unallocated:rate5m"
CARBON: Final = "instance_engine_tenant_phase:gpu_profile_serving_carbon_grams:rate5m"
COST_PER_1000: Final = "instance_engine_tenant_phase:gpu_profile_serving_cost:per_1000_tokens_rate5m"
UNALLOCATED_CARBON: Final = "instance_engine:gpu_profile_serving_carbon_grams_unallocated:rate5m"


def _priced(name: str, price: float) -> str:
    return f'label_replace(vector({price:g}), "hw_name", "{name}", "", "")'


_DEVICES: Final = named(series(SERVING_DEVICE), "hw_name")
_TO_GRAMS: Final = f"/ {_J_PER_KWH} * on () group_left () {GRID}"

INPUTS: Final = Group(
    "gpu-profile-prices",
    (
        Recording(
            PRICE,
            "\n  or ".join(_priced(name, price) for name, price in _PRICES.items()),
            "INPUT: the price of an hour of a GPU, by the GPU's name. Examples: write your own. A GPU without "
            "a price has no cost.",
        ),
        Recording(
            GRID,
            f"vector({_GRAMS_PER_KWH})",
            "INPUT: grams of CO2 equivalent for a kWh of the GPUs, the building's overhead included. An example: write "
            "your own, or the name of a series that has it.",
        ),
    ),
)
RULES: Final = Group(
    "gpu-profile-costs",
    (
        Recording(
            ENGINE_PRICE,
            f"{by('instance, engine', f'{_DEVICES} * on (hw_name) group_left () {PRICE}', 'avg')} / 3600",
            "The price of a second of one GPU of each engine.",
        ),
        Recording(
            COST,
            f"{by(_KEYS, rate(series(SERVING_DEVICE_TIME), '5m'))}\n"
            f"  * on (instance, engine) group_left () {ENGINE_PRICE}",
            "Money for a second of each tenant's work in iterations, over the last five minutes.",
        ),
        Recording(
            UNALLOCATED_COST,
            f"{by('instance, engine', series(SERVING_DEVICE), 'count')} * on (instance, engine) {ENGINE_PRICE}\n"
            f"  - on (instance, engine) ({by('instance, engine', COST)} or 0 * {ENGINE_PRICE})",
            "Money for a second of each engine's GPUs that no tenant has: idle time, and time that was not shared out.",
        ),
        Recording(
            COST_PER_1000,
            f"1000 * {COST}\n  / on ({_KEYS})\n({by(_KEYS, rate(series(SERVING_TOKENS), '5m'))} > 0)",
            "Money for 1,000 tokens of each tenant, over the last five minutes. Absent without tokens.",
        ),
        Recording(
            CARBON,
            f"{by(_KEYS, rate(series(SERVING_ENERGY), '5m'))} {_TO_GRAMS}",
            "Grams of CO2 equivalent for a second of each tenant's work, over the last five minutes.",
        ),
        Recording(
            UNALLOCATED_CARBON,
            f"{by('instance, engine', rate(series(SERVING_UNALLOCATED), '5m'))} {_TO_GRAMS}",
            "The same for the energy that no tenant has.",
        ),
    ),
)
