"""What Google asks for a pool's machines: the Cloud Billing Catalog, whose SKUs are cores, memory and GPUs.

A machine costs the sum of its parts, each by a SKU of its own for on-demand and for spot ("VM instance pricing" and
"GPU pricing" of Compute Engine; SKUs are described in services.skus.list of the Cloud Billing API). No field of a SKU
names the machine series or the GPU: only its description does, like "Spot Preemptible G2 Instance Core running in
Americas". So the whole of it is compared, and a part that no description, or descriptions at several prices fit, makes
the price unknown rather than too low. Disks have SKUs of their own, and are left out: those, too, that come with a
machine, as the local SSDs of A2 Ultra, A3 and A4 do. The API takes no permission, but it has to be enabled in the
project: the call names none, so that it is the service account's own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from airflow_gpu_provider.clouds.google import machine_types
from airflow_gpu_provider.clouds.google.clients import GoogleClients, Rest
from airflow_gpu_provider.clouds.google.pool import GkeGpuPool
from airflow_gpu_provider.clouds.list_prices import Kept, Price, Unknown, list_prices
from airflow_gpu_provider.errors import CloudError
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.pools import Candidate

COMPUTE_ENGINE = "services/6F81-5844-456A"
"""Compute Engine's name in the catalogue ("Listing public services and SKUs")."""

_FIELDS = (
    "skus(description,category/resourceFamily,serviceRegions,pricingInfo/pricingExpression(usageUnit,tieredRates)),"
    "nextPageToken"
)
_PAGE = 5000  # the most that a page may have
_READ_WITHIN = 20.0
"""Seconds that the catalogue's pages may take together: it has tens of thousands of SKUs."""

_UNITS = {"core": "h", "ram": "GiBy.h", "gpu": "h"}

# How the descriptions name the cores and the memory of a series, by the beginning of the machine type's name; A4's
# are in its GPU's SKU.
_SERIES: Mapping[str, tuple[str, ...]] = {
    "a2-": ("A2 Instance",),
    "a3-highgpu-": ("A3 Instance",),
    "a3-edgegpu-": ("A3 Instance",),
    "a3-megagpu-": ("A3Plus Instance",),
    "a3-ultragpu-": ("A3Ultra Instance", "A3 Ultra Instance"),
    "a4-": (),
    "g2-": ("G2 Instance",),
    "g4-": ("G4 Instance",),
    "n1-": ("N1 Predefined Instance",),
}
# And its GPUs, by accelerator type; some were described in two ways over time.
_GPUS: Mapping[str, tuple[str, ...]] = {
    "nvidia-tesla-k80": ("Nvidia Tesla K80 GPU",),
    "nvidia-tesla-p4": ("Nvidia Tesla P4 GPU",),
    "nvidia-tesla-p100": ("Nvidia Tesla P100 GPU",),
    "nvidia-tesla-v100": ("Nvidia Tesla V100 GPU",),
    "nvidia-tesla-t4": ("Nvidia Tesla T4 GPU",),
    "nvidia-l4": ("Nvidia L4 GPU",),
    "nvidia-tesla-a100": ("Nvidia Tesla A100 GPU",),
    "nvidia-a100-80gb": ("Nvidia Tesla A100 80GB GPU",),
    "nvidia-h100-80gb": ("Nvidia H100 80GB GPU",),
    "nvidia-h100-mega-80gb": ("Nvidia H100 80GB Mega GPU", "Nvidia H100 Mega 80GB GPU", "Nvidia H100 80GB Plus GPU"),
    "nvidia-h200-141gb": ("H200 141GB GPU", "Nvidia H200 141GB GPU"),
    "nvidia-b200": ("A4 Nvidia B200 (1 gpu slice)",),
    "nvidia-rtx-pro-6000": ("RTX 6000 96GB",),
}
# "G2 Instance Core running in Americas", "Spot Preemptible G2 Instance Core running in ...", "Nvidia L4 GPU attached to
# Spot Preemptible VMs running in ...". What has more words is something else: flex-start (DWS), sole tenancy, custom.
_DESCRIPTION = re.compile(
    r"(?P<spot>Spot Preemptible )?(?P<what>.+?)(?P<attached> attached to Spot Preemptible VMs)? running in .+"
)


class Part(NamedTuple):
    """What a SKU is for, as its description says, in lower case, and whether that is spot."""

    what: str
    is_spot: bool


Table = Mapping[Part, frozenset[float]]
"""What an hour of each part costs in one region."""

CATALOG = Kept[Table]()


def read(clients: GoogleClients, pool: GkeGpuPool, candidates: Sequence[Candidate]) -> ListPrices:
    """Return what the candidates' machines cost; what the catalogue does not say is unknown, with the reason."""
    if pool.flex_start:
        return list_prices(candidates, lambda _: Unknown(why="the SKUs of flex-start are not looked up"))
    key = (pool.gcp_conn_id, pool.impersonation_chain, pool.region, pool.currency)
    table = CATALOG.get(key, lambda: read_table(clients.billing, pool.region, pool.currency))

    def price(candidate: Candidate) -> Price:
        if isinstance(table, Unknown):
            return table
        accelerator, gpus = pool.accelerator_of(candidate.instance_type)
        return machine_price(table, candidate.instance_type, accelerator, gpus, is_spot=candidate.market != "ON_DEMAND")

    return replace(list_prices(candidates, price), took=(CATALOG.seconds(key), _READ_WITHIN))


def read_table(billing: Rest, region: str, currency: str) -> Table:
    """Return the prices of all parts of machines in a region.

    Raises:
        CloudError: Google does not answer, or not in time.
        PermissionDenied: The API is not enabled, or a perimeter does not let it through.
    """
    until, found, page = time.monotonic() + _READ_WITHIN, dict[Part, set[float]](), ""
    while True:
        query = {"currencyCode": currency, "pageSize": _PAGE, "fields": _FIELDS}
        more = {"pageToken": page} if page else {}
        path = f"{COMPUTE_ENGINE}/skus"
        answer = billing.get(path, permission="cloudbilling.services.skus.list", **query, **more)
        for part, usd in parts(answer.get("skus") or (), region):
            found.setdefault(part, set()).add(usd)
        page = answer.get("nextPageToken", "")
        if not page:
            return {part: frozenset(prices) for part, prices in found.items()}
        if time.monotonic() > until:
            raise CloudError(f"The Cloud Billing Catalog could not be read in {_READ_WITHIN:.0f} s.")


def parts(skus: Iterable[Mapping[str, Any]], region: str) -> Iterator[tuple[Part, float]]:
    """Yield the parts of machines among SKUs, and what an hour of each costs in that region. Pure."""
    for sku in skus:
        match = _DESCRIPTION.fullmatch(sku.get("description", ""))
        if match is None or region not in sku.get("serviceRegions", ()):
            continue
        if sku.get("category", {}).get("resourceFamily") != "Compute":
            continue
        for info in list(sku.get("pricingInfo") or ())[-1:]:
            expression = info.get("pricingExpression", {})
            rates = list(expression.get("tieredRates") or [])
            if expression.get("usageUnit") in _UNITS.values() and len(rates) == 1:
                part = Part(what=match["what"].lower(), is_spot=bool(match["spot"] or match["attached"]))
                yield part, _amount(rates[0].get("unitPrice", {}))


def _amount(money: Mapping[str, Any]) -> float:
    """Return a google.type.Money as a number: `units` of it, and `nanos`, 10^-9 each."""
    return int(money.get("units") or 0) + int(money.get("nanos") or 0) / 1e9


def machine_price(table: Table, machine_type: str, accelerator: str, gpus: int, *, is_spot: bool) -> Price:
    """Return what a machine costs an hour, of the parts of its region. Pure.

    Args:
        is_spot: Whether it is spot, or preemptible, which costs the same.
    """
    machine = machine_types.gce_machine_type(machine_type)
    series = next((each for each in _SERIES if machine_type.startswith(each)), None)
    if machine is None or series is None or accelerator not in _GPUS:
        return Unknown(why=f"the SKUs of {machine_type} with {accelerator or 'its GPUs'} are not known to this package")
    needed: list[tuple[float, tuple[str, ...]]] = [(gpus, _GPUS[accelerator])]
    if names := _SERIES[series]:
        needed.append((machine.vcpus, tuple(f"{name} Core" for name in names)))
        needed.append((machine.memory_gib, tuple(f"{name} Ram" for name in names)))
    total = 0.0
    for amount, names in needed:
        prices = {usd for name in names for usd in table.get(Part(what=name.lower(), is_spot=is_spot), ())}
        if len(prices) != 1:
            found = "several prices" if prices else "no SKU"
            return Unknown(why=f"the Cloud Billing Catalog has {found} for {names[0]}{' on spot' if is_spot else ''}")
        total += amount * prices.pop()
    return round(total, 6)
