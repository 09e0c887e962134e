"""GpuPool: what every pool spec has in common - fields, validation, templating and its form as JSON.

A spec is data: frozen, made of plain values, equal when its fields are. It is validated when it is constructed;
fields that hold a Jinja expression are validated after rendering, when `resolve` builds the rendered spec.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.allowed import Allowed
from airflow_gpu_provider.pools.candidates import MARKETS, Market, Preferences
from airflow_gpu_provider.pools.on_nodes import FabricPlugin, NodeDaemon, NodesToCome, PodFabric
from airflow_gpu_provider.pools.parts import as_part, forms_of, known_keys, part_problems
from airflow_gpu_provider.pools.values import (
    Taint,
    are_group_names,
    are_labels,
    are_prices,
    are_strings,
    as_bool,
    as_constant,
    as_duration,
    as_tuple,
    as_whole,
    in_seconds,
    is_currency_code,
    is_dns_label,
    is_list,
    is_template,
    named_twice,
    to_json,
    type_problems,
)

if TYPE_CHECKING:
    from airflow_gpu_provider.accelerators import GpusOfMachine, NodeSize

POOL_LABEL = "airflow-gpu-provider/pool"
"""The node label that says which pool a node belongs to; every pod placed by this package selects it."""

LIST = "list"
"""The `price_per_hour` that asks the cloud."""

_VERSION = 1
_MANAGE = ("full", "scale")
_PRICES = f'a price of 0 or more, one for each capacity type ({", ".join(MARKETS)}), or "{LIST}"'
_NONE_OF: Mapping[Callable[[Any], Any], str] = {
    as_whole: "not a whole number",
    as_duration: "no timedelta",
    float: "not a number",
}
_TIME = "Write a timedelta, like timedelta(hours=6); a template or a pool in JSON gives seconds."
_GIVE: Mapping[str, str] = {
    "price_per_hour": f"Give {_PRICES}.",
    "max_runtime": _TIME,
    "max_run_duration": _TIME,
}
# The fields that shape no group.
_OF_RUNS = ("max_runtime", "price_per_hour", "currency", "max_price_per_hour", "prefer", "min_nodes")


@dataclass(frozen=True, kw_only=True, eq=True)
class GpuPool(ABC):
    """A pool of GPU nodes that scales from zero and back to zero.

    Args: Needed
        name: Name of the pool, unique in its cluster; a DNS label. Part of its node groups' names.
        max_nodes: The most nodes that all runs together may have.

    Args: Nodes
        min_nodes: Nodes that stay when no run wants any. Default 0.
        max_runtime: How long one run may want nodes, counted from its EnsureGpuPoolOperator. After that its
            machines are released, even if pods still run on them. A timedelta; a text, as a template renders, has
            seconds. Default 24 hours.
        node_labels: Labels for the pool's nodes, in addition to the package's own.
        taints: Taints for the pool's nodes, in kubectl's notation.

    Args: Money
        price_per_hour: What one node costs per hour: a number, one for each capacity type, or "list" (docs/cost.md).
        currency: That of these prices, and so of all costs that are told of the pool: its ISO 4217 code. Default "USD".
        max_price_per_hour: The most that a node may cost per hour: dearer ones get no machines. Default: no limit.
        prefer: "order" (default): capacity types, machine types and zones as the spec lists them. "price": what is
            reserved, then the cheapest node; what costs up to 5 % more counts as equally cheap, and is taken in the
            spec's order (docs/cost.md).

    Args: Groups of others, and autoscalers
        manage: "full" (default): this package creates and owns the node groups. "scale": the groups are external
            (Terraform or eksctl owns them, say); only their sizes and machines are changed. Their nodes get
            `node_labels` and the pool's label when they join, and `taints` lists what pods have to tolerate.
        scaling: "direct": this package sets the groups' sizes. "autoscaler": cluster-autoscaler (on GKE, GKE's own)
            does, when pods are pending; this package makes sure that it can, and removes idle nodes sooner than it.

    Raises:
        PoolSpecError: A value cannot work; the message says which and why.
    """

    kind: ClassVar[str]
    placed_by: ClassVar[tuple[str, ...]] = ("name", "taints", "price_per_hour", "currency")
    """The fields that a workload's placement goes by: not where the cluster is, nor as whom it is spoken to."""
    types_field: ClassVar[str] = ""
    """The field that names the machine types of groups that this package creates; empty where it creates none."""
    unknown_type: ClassVar[str] = ""
    """A machine type that the cloud does not have, in the form that those of a coming generation will have."""
    allowed_by: ClassVar[tuple[str, ...]] = ("node_labels",)
    """The fields that `allowed` is made of."""
    cluster_fields: ClassVar[tuple[str, ...]] = ()
    """The fields that name its cluster, and how it is reached."""
    private_fields: ClassVar[Mapping[str, str]] = {}
    """The fields that identify an account, a cluster or a connection, each with a word for what it is."""

    name: str
    max_nodes: int
    min_nodes: int = 0
    max_runtime: timedelta = timedelta(hours=24)
    node_labels: dict[str, str] = field(default_factory=dict)
    taints: Sequence[str] = ("nvidia.com/gpu=true:NoSchedule",)
    price_per_hour: float | dict[str, float] | str | None = None
    currency: str = "USD"
    max_price_per_hour: float | None = None
    prefer: str = "order"
    manage: str = "full"
    scaling: str = "direct"

    def __post_init__(self) -> None:
        self._coerce()
        self._refuse((*type_problems(self), *part_problems(self)))
        self._validate()

    # -- JSON ------------------------------------------------------------------------------------------------

    def serialize(self) -> dict[str, Any]:
        """Return the spec as JSON values; `clouds.pool_kinds.deserialize_pool` reads it back."""
        values = {f.name: to_json(getattr(self, f.name)) for f in fields(self)}
        return {"kind": self.kind, "version": _VERSION, **values}

    @classmethod
    def deserialize(cls, data: Mapping[str, Any]) -> Self:
        """Build a spec from what `serialize` returned; fields and keys of a newer release are ignored."""
        known = {f.name for f in fields(cls)}
        given = {key: value for key, value in data.items() if key in known}
        return cls(**in_seconds(cls, known_keys(cls, given)))

    # -- templating ------------------------------------------------------------------------------------------

    def resolve(self, context: Any) -> Self:
        """Return the spec with its Jinja expressions rendered; Airflow calls it, mapped tasks included."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        templated = {name: value for name, value in values.items() if is_template(value)}
        if not templated:
            return self
        rendered = context["task"].render_template(templated, context)
        return type(self)(**{**values, **in_seconds(type(self), rendered)})

    def to_render(self, names: Iterable[str]) -> list[str]:
        """Return those of the fields that hold a Jinja expression."""
        return [name for name in names if is_template(getattr(self, name))]

    @property
    def is_rendered(self) -> bool:
        """Whether no field holds a Jinja expression any more."""
        return not self.to_render(f.name for f in fields(self))

    # -- queries ---------------------------------------------------------------------------------------------

    @property
    def node_selector(self) -> dict[str, str]:
        """The labels that a pod selects to run on this pool."""
        return {POOL_LABEL: self.name}

    @property
    def labels(self) -> dict[str, str]:
        """All labels that this spec gives the pool's nodes."""
        return {**self.node_labels, **self.node_selector}

    @property
    def spot_labels(self) -> Mapping[str, tuple[str, ...]]:
        """The labels that the cloud gives spot nodes, with their values; none: any value. Default: there are none."""
        return {}

    @property
    def nodes_join_unlabelled(self) -> bool:
        """Whether nodes may join without the pool's labels, which this package then gives them."""
        return self.manage == "scale"

    @property
    def parsed_taints(self) -> tuple[Taint, ...]:
        """The taints, parsed into key, value and effect."""
        return tuple(Taint.parse(text) for text in self.taints)

    def price(self, market: str) -> float | None:
        """Return what a node on `market` costs per hour, RESERVED as on demand; None where the spec has no price."""
        prices = self.price_per_hour
        if not isinstance(prices, dict):
            return None if isinstance(prices, str) else prices
        return prices.get(market, prices.get("ON_DEMAND") if market == "RESERVED" else None)

    @property
    def has_list_prices(self) -> bool:
        """Whether the cloud is asked what nodes cost."""
        return self.price_per_hour == LIST

    @property
    def typed_prices(self) -> dict[str, float | None]:
        """What the spec gives by market that it names; empty where it gives no prices, or has them listed."""
        prices = self.price_per_hour
        if prices is None or self.has_list_prices:
            return {}
        named = self._priced_markets or (prices if isinstance(prices, dict) else ("",))
        return {market: self.price(market) for market in named}

    @property
    def _priced_markets(self) -> tuple[Market, ...]:
        """The markets that prices are of; those of external groups are the groups' own."""
        return self.markets if self.manage == "full" else ()

    # -- what provides it ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def platform_path(self) -> str:
        """The class that provides a rendered pool, as "module:Class"; see `clouds.base.platform_for`."""

    @property
    def remains_path(self) -> str:
        """The function that lists what a cloud still has of pools, as "module:function"; see `clouds.remains.remains`.

        Default: empty, where a pool has nothing outside its cluster.
        """
        return ""

    # -- what its machines may be, and who ends them ---------------------------------------------------------

    @property
    def markets(self) -> tuple[Market, ...]:
        """The capacity types that the spec names, in order of preference; empty where it names none."""
        return ()

    @property
    def machine_types(self) -> Sequence[str]:
        """The machine types that the spec names, in order of preference; empty where it names none."""
        return ()

    @property
    def zones(self) -> Sequence[str]:
        """The zones that the spec names, in order of preference; empty where it names none."""
        return ()

    @property
    def cluster_region(self) -> str:
        """The region that its cluster is in, as nodes have it in topology.kubernetes.io/region; empty: not known."""
        return ""

    @property
    def preferences(self) -> Preferences:
        """What its machines may be, and what of that it prefers."""
        return Preferences(markets=self.markets, types=self.machine_types, zones=self.zones)

    @property
    def allowed(self) -> Allowed:
        """What the spec allows its nodes to be."""
        return self.preferences.allowed(self.manage, self.node_labels)

    @property
    def is_reserved(self) -> bool:
        """Whether machines come only from a reservation."""
        return False

    @property
    def how_to_widen(self) -> str:
        """What to do so that more machines can be the pool's: the beginning of a sentence."""
        return "Allow the pool more machines"

    @property
    def groups_of_others(self) -> Mapping[str, Sequence[str]]:
        """The external groups that the spec names, by field; empty where this package creates the pool's groups."""
        return {}

    @property
    def machines_of_others(self) -> frozenset[str]:
        """What the spec names of others that scaling down changes, as "asg_names=web"."""
        return frozenset(f"{field}={name}" for field, names in self.groups_of_others.items() for name in names)

    @property
    def node_lifetime(self) -> timedelta | None:
        """How long the cloud lets a machine live; None: without a limit."""
        return None

    @property
    def is_switched_off(self) -> bool:
        """Whether the cloud sets the pool's groups to zero at a time that it was told, even if pods are still there."""
        return False

    @property
    def ends_by_itself(self) -> bool:
        """Whether the cloud ends its machines some time after its demand is over, with Airflow and the cluster gone."""
        return self.is_switched_off and not self.min_nodes

    @property
    def spot_notice(self) -> int | None:
        """How many seconds pods have once a spot machine is taken back; None: not known."""
        return None

    # -- a pool like it ------------------------------------------------------------------------------------------

    def for_one_night(self, name: str, night: timedelta) -> Self:
        """Return the same pool under another name, of one node and for runs of at most `night`."""
        return replace(self, name=name, max_nodes=1, min_nodes=0, max_runtime=night)

    def with_unknown_type_first(self, name: str) -> Self:
        """Return the same pool under another name, which would rather have machines of `unknown_type`."""
        types: dict[str, Any] = {self.types_field: (self.unknown_type, *self.machine_types)}
        return replace(self, name=name, **types)

    # -- who adds its nodes ----------------------------------------------------------------------------------

    @property
    def provisioner(self) -> str | None:
        """What adds nodes when pods need them, and removes idle ones, by its own configuration; None: nothing."""
        return None

    @property
    def reads_of_provisioner(self) -> Sequence[tuple[str, str, str]]:
        """What of a provisioner's own objects is read: verb, API group and resource."""
        return ()

    @property
    def has_karpenter(self) -> bool:
        """Whether Karpenter, or EKS Auto Mode after it, adds the nodes, by NodePools and NodeClaims."""
        return False

    @property
    def has_node_classes(self) -> bool:
        """Whether the images of the nodes are known by its provisioner's node classes."""
        return False

    @property
    def is_autoscaled(self) -> bool:
        """Whether an autoscaler, and not this package, adds the nodes."""
        return self.scaling == "autoscaler"

    @property
    def needs_cluster_autoscaler(self) -> bool:
        """Whether nodes are added only if cluster-autoscaler runs in the cluster."""
        return False

    @property
    def has_autoscaler_status(self) -> bool:
        """Whether cluster-autoscaler's ConfigMap with its status is read for it."""
        return self.needs_cluster_autoscaler

    @property
    def takes_cluster_autoscaler(self) -> bool:
        """Whether this package can install cluster-autoscaler in its cluster."""
        return False

    @property
    def is_grown_by_cluster_autoscaler(self) -> bool:
        """Whether cluster-autoscaler, or GKE's own, adds the nodes: what it says of other pools' pods means nothing."""
        return self.is_autoscaled

    @property
    @abstractmethod
    def gpus_per_node(self) -> int | None:
        """How many GPUs each node has at least, or None where the catalogue does not know."""

    @property
    def node_sizes(self) -> dict[str, NodeSize | None]:
        """The most that pods can use of a node of each machine type; None where the catalogue does not know the type.

        Empty where the spec names no types.
        """
        return {}

    def gpus_of(self, machine_type: str) -> GpusOfMachine | None:
        """Return the GPUs of the pool's machines of that type; None where no catalogue knows them."""
        return None

    @property
    def most_gpus_of_a_pod(self) -> int | None:
        """How many GPUs a node gives one pod, where that is fewer than it has: they are shared. None: all of them."""
        return None

    @property
    def shares_gpus(self) -> bool:
        """Whether several pods share a GPU: what a node offers are shares, and others' pods take the rest."""
        return False

    # -- what is on its nodes, and what pods get of them -----------------------------------------------------

    @property
    def nodes_to_come(self) -> NodesToCome:
        """What the spec alone makes known of nodes that do not exist yet."""
        return NodesToCome(labels={"kubernetes.io/os": "linux", **self.labels})

    def driver_installer(self, image: str | None = None) -> NodeDaemon | None:
        """Return what installs NVIDIA's driver on the nodes, where that is left to a DaemonSet of this package's.

        `image` is another installer instead of the cloud's own.
        """
        return None

    def fabric_plugin(self, image: str | None = None) -> FabricPlugin | None:
        """Return what hands out the interfaces of the nodes' fabric; None where they have none that is handed out.

        `image` is another one instead of the cloud's own.
        """
        return None

    def fabric_of(self, gpus: int) -> PodFabric | None:
        """Return what each pod of a gang with so many GPUs asks for of the nodes' fabric; None where they have none."""
        return None

    @property
    def lets_pods_avoid_nodes(self) -> bool:
        """Whether pods may keep off single nodes, by their affinity."""
        return True

    def refuses_not_to_evict(self, node_selector: Mapping[str, str]) -> bool:
        """Return True if no node comes for a pod with this selector that asks the autoscaler not to evict it."""
        return False

    @property
    def how_to_start_sooner(self) -> str:
        """What of the spec would make images be there sooner: a clause; empty: nothing."""
        return ""

    @property
    def how_to_find_libraries(self) -> str:
        """What an image needs so that programs find the driver's libraries on the nodes; empty: nothing."""
        return ""

    @property
    def room_for_images(self) -> int | None:
        """The size in GiB of the disk that has images and pods, where the spec alone decides it; None: it does not."""
        return None

    @property
    def needs_host_ipc(self) -> bool:
        """Whether its pods have to be in their host's IPC namespace."""
        return False

    @property
    def given_nodes(self) -> int | None:
        """The least number of nodes of a pool that never grows; None for a pool that may."""
        return None

    @property
    def nodes_come_with_pods(self) -> bool:
        """Whether an autoscaler or provisioner adds nodes once pods are pending, so that Ensure waits for none."""
        return self.is_autoscaled

    @property
    @abstractmethod
    def gpu_products(self) -> tuple[str, ...]:
        """The GPU models that nodes of this pool can have, as people call them."""

    @property
    @abstractmethod
    def console_url(self) -> str:
        """The URL of the pool's groups in the cloud's console."""

    @property
    @abstractmethod
    def cluster_identity(self) -> str:
        """The pool's cluster and the credentials used for it; pools that have the same may share connections."""

    @property
    def cluster_arguments(self) -> dict[str, Any]:
        """The values of `cluster_fields`, by the names of the cloud's own pod operator."""
        return {name: getattr(self, name) for name in self.cluster_fields}

    @property
    def kubernetes_connection(self) -> str | None:
        """The Airflow connection of type kubernetes by which its cluster is reached; None: it is reached otherwise."""
        return None

    @property
    def provisioning_class(self) -> str:
        """The class of the ProvisioningRequests by which nodes come; empty where they come otherwise.

        Empty, too, where only a rendered spec says which.
        """
        return ""

    def demand_lasts(self, give_up_after: timedelta | None = None) -> timedelta:
        """Return how long demand lasts: max_runtime, and the time before it for which Kueue may queue trainings.

        There demand brings no machine by itself, and no machine lives longer than `node_lifetime`.

        Args:
            give_up_after: How long they may wait. Default, and at least: max_runtime.
        """
        if not self.provisioning_class:
            return self.max_runtime
        return self.max_runtime + max(self.max_runtime, give_up_after or timedelta(0))

    def check_nodes_come(self, *, nodes: int, gpus: int, queue: str | None, annotations: Collection[str] = ()) -> None:  # noqa: B027
        """Check that a task's pods get nodes where these come only for some tasks.

        Args:
            nodes: How many ranks there are; 1 for what is no gang.
            gpus: GPUs of each pod.
            queue: The Kueue LocalQueue that admits them; None or "" for none.
            annotations: The keys of their annotations.

        Raises:
            PoolSpecError: No nodes would come for them, or too few.
        """

    def nodes_for(self, *, gpus: int | None, nodes: int | None) -> int:
        """Return how many nodes provide `gpus` GPUs, or check `nodes`; exactly one of the two is given.

        Raises:
            PoolSpecError: Both or neither are given, or the pool cannot have that many.
        """
        if (gpus is None) == (nodes is None):
            raise PoolSpecError(f"Pool {self.name}: gpus={gpus}, nodes={nodes}.", "Set one of gpus and nodes.")
        if nodes is None:
            if self.gpus_per_node is None:
                raise PoolSpecError(
                    f"Pool {self.name}: the catalogue does not have the number of GPUs of its machines.",
                    "Give nodes= instead of gpus=.",
                )
            nodes = math.ceil(cast("int", gpus) / self.gpus_per_node)
        if nodes < 1:
            raise PoolSpecError(f"Pool {self.name}: {nodes} nodes are wanted.", "Want at least one.")
        if nodes > self.max_nodes:
            raise PoolSpecError(
                f"Pool {self.name}: {nodes} nodes are wanted, but max_nodes is {self.max_nodes}.",
                "Raise max_nodes, or want fewer GPUs.",
            )
        return nodes

    @property
    def private_names(self) -> dict[str, str]:
        """The values of `private_fields`, each with its word; but for those that every installation has."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name in self.private_fields}
        defaults = {each.name: each.default for each in fields(self)}
        own = {name: value for name, value in given.items() if value and value != defaults[name]}
        return {str(value): self.private_fields[name] for name, value in own.items()}

    @property
    def spec_hash(self) -> str:
        """A short hash of the fields that shape the node groups; groups carry it as a tag."""
        text = json.dumps(self._group_fields(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _group_fields(self) -> dict[str, Any]:
        """Return what is given of these fields: one that a later release adds changes no hash until it is used."""
        not_in_groups = {*_OF_RUNS, *self.groups_of_others}
        given = {key: value for key, value in self.serialize().items() if key not in not_in_groups}
        return {key: value for key, value in given.items() if value not in (None, False, "", [], {})}

    def __hash__(self) -> int:
        return hash(json.dumps(self.serialize(), sort_keys=True))

    # -- validation ------------------------------------------------------------------------------------------

    def _coerce(self) -> None:
        self._set("taints", type(self).taints if self.taints is None else self.taints)
        for name in (each.name for each in fields(self) if is_list(each)):
            self._set(name, as_tuple(getattr(self, name)))
        self._convert(as_whole, "max_nodes", "min_nodes")
        for name in (each.name for each in fields(self) if each.type == "bool"):
            self._set(name, as_bool(getattr(self, name)))
        for name, form in forms_of(type(self)).items():
            self._set(name, as_part(name, form, getattr(self, name), self._as))
        self._convert(as_duration, "max_runtime")
        prices = self.price_per_hour
        if isinstance(prices, str | Decimal) and prices != LIST:
            self._convert(float, "price_per_hour")
        if isinstance(prices, dict):
            by_market = {as_constant(key): self._as(float, "price_per_hour", price) for key, price in prices.items()}
            self._set("price_per_hour", by_market)
        self._convert(float, "max_price_per_hour")

    def _validate(self) -> None:
        self._check("name", partial(is_dns_label, at_most=40), "a DNS label: a-z, 0-9 and '-', at most 40 characters")
        self._check("max_nodes", lambda n: n >= 1, "at least 1")
        self._check("min_nodes", lambda n: n >= 0, "at least 0")
        self._check("max_runtime", lambda t: t > timedelta(0), "more than zero")
        if self.is_rendered and self.min_nodes > self.max_nodes:
            raise self._error(f"min_nodes={self.min_nodes} is more than max_nodes={self.max_nodes}")
        self._check("price_per_hour", lambda given: given == LIST or are_prices(given, MARKETS), _PRICES)
        self._check("max_price_per_hour", lambda most: most is None or 0 < most < math.inf, "a number above 0")
        self._check("prefer", lambda by: by in ("order", "price"), '"order" or "price"')
        if not is_template([self.max_price_per_hour, self.price_per_hour, self.prefer, self.scaling]):
            self._refuse(self._price_problems())
        self._check("currency", is_currency_code, "an ISO 4217 code: three capital letters, as USD")
        self._check("node_labels", are_labels, "valid Kubernetes labels")
        if POOL_LABEL in self.node_labels:
            raise self._error(f"node_labels may not set {POOL_LABEL}: the package sets it")
        self._check("taints", are_strings, "a list of taints in kubectl's notation")
        if not is_template(self.taints):
            try:
                _ = self.parsed_taints
            except PoolSpecError as error:
                raise self._error(f"taints: {error.what.rstrip('.')}", error.fix) from error

    def _price_problems(self) -> Iterator[tuple[str, str]]:
        """Yield why the prices are those of no machine of the pool, or cannot meet its limit, each with its fix."""
        markets = self._priced_markets
        priced = self.price_per_hour if isinstance(self.price_per_hour, dict) and not is_template(markets) else {}
        if priced and markets and {*markets, *(MARKETS if "RESERVED" in markets else ())}.isdisjoint(priced):
            yield (
                f"price_per_hour has a price of {' and '.join(priced)}, and the pool's capacity_types are"
                f" {', '.join(markets)}",
                "Give a price of each of its capacity types.",
            )
        yield from self._preference_problems()
        limit = self.max_price_per_hour
        if limit is None:
            return
        if self.price_per_hour is None:
            yield "max_price_per_hour needs prices", 'Set price_per_hour="list", or give the prices there.'
        if self.nodes_come_with_pods:
            yield (
                "max_price_per_hour has no effect where others add the nodes",
                "Limit the machine types of the autoscaler or the provisioner.",
            )
        typed = self.typed_prices
        if typed and all(price is not None and price > limit for price in typed.values()):
            yield (
                f"each price of price_per_hour is more than max_price_per_hour={limit:g}",
                "Raise the limit, or name cheaper machines.",
            )

    def _preference_problems(self) -> Iterator[tuple[str, str]]:
        """Yield why the pool cannot prefer by price, each with its fix."""
        if self.prefer != "price":
            return
        if self.nodes_come_with_pods or not self.types_field:
            yield 'prefer="price" has no effect where others add the nodes', 'Leave out prefer="price".'
        if self.price_per_hour is None:
            yield 'prefer="price" needs prices', 'Set price_per_hour="list", or give the prices there.'
        elif self.price_per_hour != LIST and len({*self.typed_prices.values()}) < 2:
            yield (
                'prefer="price" has no effect: every node costs the same by price_per_hour',
                'Set price_per_hour="list", or give a price for each of several capacity types.',
            )

    def _check_manage(self, shape: tuple[str, ...]) -> None:
        """Check that groups are named if they are external, and only then; these take no field of `shape`."""
        self._check("manage", _MANAGE.__contains__, '"full" or "scale"')
        if is_template(self.manage):
            return
        named = self.groups_of_others
        if self.manage == "full":
            self._check(self.types_field, len, "at least one machine type with GPUs")
            for name in (name for name, groups in named.items() if groups):
                raise self._error(f'{name} names external groups, but manage is "full"', 'Set manage="scale".')
            return
        if not any(named.values()):
            raise self._error('manage="scale" needs groups to scale', f"Name them in {' or '.join(named)}.")
        for name in named:
            self._check(name, are_group_names, "names of groups, each once")
        self._refuse(named_twice(named))
        defaults = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(self)}
        given = [name for name in shape if getattr(self, name) != defaults[name]]
        if given:
            raise self._error(
                f'{", ".join(given)}: with manage="scale" the groups have theirs already', "Leave it out."
            )

    def _check(self, name: str, is_valid: Any, wanted: str) -> None:
        value = getattr(self, name)
        try:
            fits = is_template(value) or is_valid(value)
        except TypeError:  # None, for a pattern
            fits = False
        if not fits:
            raise self._error(f"{name}={value!r} must be {wanted}")

    def _refuse(self, problems: Iterable[tuple[str, str]]) -> None:
        for what, fix in problems:
            raise self._error(what, fix)

    def _error(self, text: str, fix: str = "Correct the pool's spec.") -> PoolSpecError:
        return PoolSpecError(f"Pool {self.name!r}: {text}.", fix, pool=str(self.name))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _convert(self, kind: Callable[[Any], Any], *names: str) -> None:
        """Convert the values of fields; one that is None by default may be None."""
        for name in names:
            if (value := getattr(self, name)) is not None or getattr(type(self), name, MISSING) is not None:
                self._set(name, self._as(kind, name, value))

    def _as(self, kind: Callable[[Any], Any], name: str, value: Any) -> Any:
        if is_template(value):
            return value
        fix = _GIVE.get(name, "Correct the pool's spec.")
        if kind is as_duration and isinstance(value, int | float):
            raise self._error(f"{name}={value!r} has no unit", fix)
        try:
            return kind(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise self._error(f"{name}={value!r} is {_NONE_OF[kind]}", fix) from error
