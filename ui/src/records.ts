// What this package's tasks leave in XCom (docs/xcom.md), read defensively: a missing field, or a custom XCom backend's
// reference in place of a value, is unknown (null).

import { LISTED } from "./format.ts";
import type { PoolId } from "./pools.ts";

export type Phase = "booting" | "working" | "idle";
export const PHASES: readonly Phase[] = ["booting", "working", "idle"];

export type Span = [from: string, to: string];

export type Machine = {
  machine: string;
  node: string;
  group: string;
  market: string;
  launched_at: string | null;
  usable_at: string | null;
  gone_at: string | null;
  worked: Span[];
};

export type Usage = {
  machines: number | null;
  at_least: string | null;
  seconds: Record<Phase, number>;
  cost: Record<Phase | "total", number | null>;
  over_max_cost: number | null;
  currency: string;
  timeline: Machine[];
  left_out: number;
  autoscaler: { idle_minutes: number | null; seconds: number | null; cost: number | null } | null;
  computed: Computed | null;
};

/** The share of the working time in which the GPUs computed, and for how much of that time it is known. */
export type Computed = { share: number; known: number };

/** What one GPU of a training did. */
export type GpuUse = {
  rank: string;
  gpu: number | null;
  mean: number | null;
  memory: number | null;
  power: number | null;
  limit: number | null;
  /** Busy throughout at a draw near idle, as one is that waits for another rank. */
  spun: boolean;
};

/** A training that may hang: one of its pods, and for how many of them it holds. */
export type Hang = { run: string; pod: string; pods: number | null; since: string | null; shownBy: string };

/** How a task's last try ended. */
export type Failure = { task: string; type: string; what: string; fix: string };

/** What a run may cost, and what of that is left at least. */
export type Budget = { most: number; spent: number | null; at: string | null; left: number | null; raised: string };

export type Finding = { pool: string; check: string; result: string; message: string; fix: string };

export type TimedPhase = { phase: string; seconds: number | null; at: string | null };

/** A candidate that had no machine, from Ensure's XCom. */
export type Refusal = {
  zone: string;
  instance_type: string;
  capacity_type: string;
  times: number;
  last: string | null;
  why: string;
};

export type Leftover = { pool: string; kind: string; name: string; why: string };

export type MachineNow = {
  machine: string;
  node: string;
  group: string;
  state: string;
  gpus: number | null;
  gpus_used: number | null;
  pods: string[];
  /** The runs whose pods run on it, as "dag/run"; null in a record of an earlier release. */
  runs: string[] | null;
  age: number | null;
  cost: number | null;
  price: number | null;
};

export type Lease = {
  run: string;
  nodes: number | null;
  until: string;
  live: boolean;
  reason: string;
  budget: Budget | null;
};

export type Status = {
  pool: PoolId;
  where: string;
  wanted: number | null;
  wanted_by: string;
  nodes: number | null;
  booting: number | null;
  out_of_use: number | null;
  launching: number | null;
  /** Machines that no run wants; null in a record of an earlier release. */
  unwanted: number | null;
  cost_per_hour: number | null;
  currency: string;
  machines: MachineNow[];
  leases: Lease[];
  hangs: Hang[];
};

type Json = Record<string, unknown>;

const isObject = (value: unknown): value is Json => typeof value === "object" && value !== null && !Array.isArray(value);
const objects = (value: unknown): Json[] => (Array.isArray(value) ? value.filter(isObject) : []);
const text = (value: unknown): string => (typeof value === "string" ? value : "");
const number = (value: unknown): number | null =>
  typeof value === "number" && Number.isFinite(value) ? value : null;
const time = (value: unknown): string | null =>
  typeof value === "string" && !Number.isNaN(Date.parse(value)) ? value : null;

/** The value of an XCom entry: the API returns JSON as such, or as text. A reference stays text. */
export function xcomValue(value: unknown): unknown {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

/** The bill of a run; null if the value is not a bill. */
export function readUsage(value: unknown): Usage | null {
  if (!isObject(value) || !isObject(value.node_seconds)) return null;
  const seconds = value.node_seconds;
  const cost = isObject(value.cost) ? value.cost : {};
  return {
    machines: number(value.machines),
    at_least: text(value.at_least) || null,
    seconds: byPhase((phase) => Math.max(0, number(seconds[phase]) ?? 0)),
    cost: { ...byPhase((phase) => number(cost[phase])), total: number(cost.total) },
    over_max_cost: number(value.over_max_cost),
    currency: currencyOf(value),
    timeline: objects(value.timeline).map(readMachine),
    left_out: number(value.timeline_left_out) ?? 0,
    autoscaler: isObject(value.autoscaler) ? readAutoscaler(value.autoscaler) : null,
    computed: isObject(value.computed) ? readComputed(value.computed) : null,
  };
}

/** The currency of money, with whose prices it goes by where that is the cloud's list: money of the two is not added up. */
const currencyOf = (value: Json): string =>
  text(value.currency) + (value.price_source === "list price" ? LISTED : "");

function readComputed(value: Json): Computed | null {
  const share = number(value.share);
  const known = number(value.known);
  return share === null || known === null ? null : { share, known };
}

const byPhase = <T>(of: (phase: Phase) => T) => ({ booting: of("booting"), working: of("working"), idle: of("idle") });

function readAutoscaler(value: Json) {
  const bySeconds = isObject(value.node_seconds) ? value.node_seconds : {};
  const seconds = PHASES.map((phase) => number(bySeconds[phase]));
  return {
    idle_minutes: number(value.idle_minutes),
    seconds: seconds.reduce((sum, each) => (sum === null || each === null ? null : sum + each), 0),
    cost: isObject(value.cost) ? number(value.cost.total) : null,
  };
}

function readMachine(value: Json): Machine {
  return {
    machine: text(value.machine),
    node: text(value.node),
    group: text(value.group),
    market: text(value.market),
    launched_at: time(value.launched_at),
    usable_at: time(value.usable_at),
    gone_at: time(value.gone_at),
    worked: (Array.isArray(value.worked) ? value.worked : []).filter(isSpan),
  };
}

const isSpan = (value: unknown): value is Span =>
  Array.isArray(value) && value.length === 2 && value.every((each) => time(each) !== null);

/** The share of a training in which its GPUs computed; null if unknown. */
export const readUtilization = (value: unknown): number | null => (isObject(value) ? number(value.computed_fraction) : null);

/** What each GPU of a training did; empty if that was not sampled, or by an earlier release. */
export const readGpus = (value: unknown): GpuUse[] =>
  objects(isObject(value) ? value.gpus : null).map((each) => ({
    rank: String(each.rank ?? ""),
    gpu: number(each.gpu),
    mean: number(each.mean),
    memory: number(each.memory_mib_max),
    power: number(each.power_w_mean),
    limit: number(each.power_limit_w),
    spun: each.spun === true,
  }));

export function readFailure(value: unknown): Failure | null {
  if (!isObject(value) || !text(value.type)) return null;
  const index = number(value.map_index) ?? -1;
  const task = text(value.task_id) + (index >= 0 ? ` [${index}]` : "");
  return { task, type: text(value.type), what: text(value.what), fix: text(value.fix) };
}

/** A run's errors: what may have left machines first, and the verdict, which only repeats the others, if it is alone. */
export function inOrder(failures: readonly Failure[]): Failure[] {
  const causes = failures.filter((each) => each.type !== "BlockFailed");
  const isFirst = (each: Failure) => each.type === "PoolNotReleased";
  return causes.length ? [...causes.filter(isFirst), ...causes.filter((each) => !isFirst(each))] : [...failures];
}

export function readFindings(value: unknown): Finding[] {
  return objects(value).map((each) => ({
    pool: text(each.pool),
    check: text(each.check),
    result: text(each.result),
    message: text(each.message),
    fix: text(each.fix),
  }));
}

export function readTimeline(value: unknown): TimedPhase[] {
  return objects(value).map((each) => ({ phase: text(each.phase), seconds: number(each.seconds), at: time(each.at) }));
}

/** The candidates that were tried in vain; those skipped because of an earlier refusal were not tried. */
export function readRefusals(value: unknown): Refusal[] {
  return objects(isObject(value) ? value.tried : value)
    .map((each) => ({
      zone: text(each.zone),
      instance_type: text(each.instance_type),
      capacity_type: text(each.capacity_type),
      times: number(each.times) ?? 0,
      last: time(each.last),
      why: text(each.why),
    }))
    .filter((each) => each.times > 0);
}

/** What the janitor found and could not remove. */
export function readLeft(value: unknown): Leftover[] {
  return objects(value).flatMap((each) => [
    ...objects(each.left).map((left) => ({
      pool: text(each.pool),
      kind: text(left.kind),
      name: text(left.name),
      why: text(left.why),
    })),
    ...(text(each.error) ? [{ pool: text(each.pool), kind: "pool", name: text(each.pool), why: text(each.error) }] : []),
  ]);
}

const poolIn = (value: Json): PoolId => ({ name: text(value.pool), cluster: text(value.cluster) || null });

/** The pools whose runs a task may extend. */
export const readExtends = (value: unknown): PoolId[] => objects(value).map(poolIn).filter((pool) => pool.name);

export function readStatus(value: unknown): Status[] {
  return objects(value).map((each) => ({
    pool: poolIn(each),
    where: text(each.where),
    wanted: number(each.wanted),
    wanted_by: text(each.wanted_by),
    nodes: number(each.nodes),
    booting: number(each.booting),
    out_of_use: number(each.out_of_use),
    launching: number(each.launching),
    unwanted: number(each.unwanted),
    cost_per_hour: number(each.cost_per_hour),
    currency: currencyOf(each),
    machines: objects(each.machines).map(readMachineNow),
    leases: objects(each.leases).map((lease) => ({
      run: text(lease.run),
      nodes: number(lease.nodes),
      until: text(lease.until),
      live: lease.live === true,
      reason: text(lease.extended),
      budget: isObject(lease.budget) ? readBudget(lease.budget) : null,
    })),
    hangs: objects(each.hangs).map((hang) => ({
      run: text(hang.run),
      pod: text(hang.pod),
      pods: number(hang.pods),
      since: time(hang.since),
      shownBy: text(hang.shown_by),
    })),
  }));
}

function readBudget(value: Json): Budget | null {
  const most = number(value.max_cost);
  if (most === null) return null;
  return { most, spent: number(value.spent), at: time(value.at), left: number(value.left), raised: text(value.raised) };
}

function readMachineNow(value: Json): MachineNow {
  return {
    machine: text(value.machine),
    node: text(value.node),
    group: text(value.group),
    state: text(value.state),
    gpus: number(value.gpus),
    gpus_used: number(value.gpus_used),
    pods: (Array.isArray(value.pods) ? value.pods : []).map(text),
    runs: Array.isArray(value.runs) ? value.runs.map(text) : null,
    age: number(value.age_seconds),
    cost: number(value.cost_so_far),
    price: number(value.cost_per_hour),
  };
}

/** Why a machine is still there. */
export function whyItStays(machine: MachineNow, status: Status): string {
  if (machine.pods.length) return `runs ${machine.pods.join(", ")}`;
  if (machine.state === "cordoned" || machine.state === "taken") return "takes no new pods: it is being released";
  if (machine.state === "broken") return "its GPUs cannot be used";
  if (machine.state === "coming") return "boots";
  const wanted = status.leases.filter((lease) => lease.live);
  if (wanted.length) return `wanted by ${wanted.map((lease) => lease.run).join(", ")}`;
  return (status.wanted ?? 0) > 0 ? `wanted by ${status.wanted_by}` : "no run wants it; the next reconcile releases it";
}

/** The run of a demand Lease: `dag_id/run_id`, optionally with `/block`; DAG ids have no slash. */
export function runOfLease(run: string): { dagId: string; runId: string } | null {
  const match = /^([^/]+)\/([^/]+)/.exec(run);
  return match ? { dagId: match[1]!, runId: match[2]! } : null;
}
