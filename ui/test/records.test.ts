import assert from "node:assert/strict";
import { test } from "node:test";

import { firstSentence, money } from "../src/format.ts";
import { laneOfMachine, lanesOf, type RunRecords } from "../src/lanes.ts";
import type { Now, PoolNow } from "../src/load.ts";
import { add, allSeconds, byDag, byDay, computedIn, extraCost, type Night, noTotal } from "../src/nights.ts";
import {
  inOrder,
  readExtends,
  readFailure,
  readFindings,
  readGpus,
  readRefusals,
  readStatus,
  readUsage,
  runOfLease,
  whyItStays,
  xcomValue,
} from "../src/records.ts";
import { clusterOf, dagsOf, keyOf, meant, once, titleOf } from "../src/pools.ts";
import { lastNight, needOf, running, seenStage } from "../src/summary.ts";
import { hasRole, inOrderOfBegin, lastOfEach, type LiveRun, liveRuns, lookPeriod, ofRoles, poolOf, type Role, type Task } from "../src/tasks.ts";

const BILL = {
  machines: 1,
  at_least: null,
  node_seconds: { booting: 100, working: 3000, idle: 50 },
  cost: { booting: 0.1, working: 3, idle: 0.05, total: 3.15 },
  over_max_cost: 1.25,
  currency: "USD",
  timeline: [],
  timeline_left_out: 0,
  autoscaler: { idle_minutes: 10, node_seconds: { booting: 100, working: 3000, idle: 600 }, cost: { total: 3.7 } },
};

const task = (changed: Partial<Task> = {}): Task => ({
  dag_id: "nightly",
  dag_run_id: "scheduled__2026-03-01T02:00:00+00:00",
  task_id: "train-gpu.scale_down",
  map_index: -1,
  try_number: 1,
  state: "success",
  operator_name: "GPU scale_down: ScaleDownSensor",
  run_after: "2026-03-01T02:00:00Z",
  start_date: "2026-03-01T03:00:00Z",
  end_date: "2026-03-01T03:01:00Z",
  ...changed,
});

const night = (value: unknown, changed: Partial<Task> = {}): Night => ({
  task: task(changed),
  pool: { name: "train-gpu", cluster: null },
  usage: readUsage(value),
  why: "",
  red: changed.state === "failed",
  failure: null,
});

test("what is no bill is not read as an empty one", () => {
  for (const value of [null, undefined, 3, "s3://bucket/key", [], {}, { node_seconds: 3 }]) {
    assert.equal(readUsage(value), null);
  }
});

test("an unknown price stays unknown, and is told as such in totals", () => {
  const unknown = { ...BILL, cost: { booting: "unknown", working: "unknown", idle: "unknown", total: "unknown" } };
  assert.equal(readUsage(unknown)!.cost.total, null);
  assert.equal(money(null, "USD"), "unknown");
  const total = add(add(noTotal(), night(BILL)), night(unknown));
  assert.deepEqual([total.nights, total.withoutCost, total.cost], [2, 1, { USD: 3.15 }]);
});

test("money names its currency, and that of different currencies is not added up", () => {
  assert.deepEqual([money(3.15, "USD"), money(0.0139, "EUR"), money(3.15, "")], ["3.15 USD", "0.0139 EUR", "3.15"]);
  const total = [BILL, { ...BILL, currency: "EUR" }, BILL].map((bill) => night(bill)).reduce(add, noTotal());
  assert.deepEqual(total.cost, { USD: 6.3, EUR: 3.15 });
  assert.deepEqual(Object.keys(total.extra), ["USD", "EUR"]);
});

test("money of list prices says so, and is not added to other money", () => {
  const total = [BILL, { ...BILL, price_source: "list price" }].map((bill) => night(bill)).reduce(add, noTotal());
  assert.deepEqual(total.cost, { USD: 3.15, "USD (list price)": 3.15 });
  assert.equal(readStatus([{ pool: "p", currency: "EUR", price_source: "list price" }])[0]?.currency, "EUR (list price)");
});

test("a night without a bill counts as a night and adds no seconds", () => {
  const total = add(noTotal(), night("s3://bucket/key", { state: "failed" }));
  assert.deepEqual([total.nights, total.withoutBill, total.redRuns.size, allSeconds(total.seconds)], [1, 1, 1, 0]);
});

test("an autoscaler is never shown as cheaper than it would have been", () => {
  assert.ok(Math.abs(extraCost(readUsage(BILL)!)! - 0.55) < 1e-9);
  assert.equal(extraCost(readUsage({ ...BILL, autoscaler: { ...BILL.autoscaler, cost: { total: 1 } } })!), 0);
  assert.equal(extraCost(readUsage({ ...BILL, autoscaler: undefined })!), null);
  assert.equal(extraCost(readUsage({ ...BILL, autoscaler: { ...BILL.autoscaler, cost: { total: "unknown" } } })!), null);
});

test("days without a night are there, and the sums of days are those of the bills", () => {
  const days = byDay([night(BILL), night(BILL)], Date.parse("2026-03-02T12:00:00Z"), 30);
  assert.equal(days.length, 30);
  assert.equal(days.reduce((sum, each) => sum + allSeconds(each.total.seconds), 0), 2 * 3150);
  assert.deepEqual(days.map((each) => each.day), [...days.map((each) => each.day)].sort());
});

test("DAGs come with the most node time first", () => {
  const more = { ...BILL, node_seconds: { booting: 0, working: 9000, idle: 0 } };
  assert.deepEqual(
    byDag([night(BILL), night(more, { dag_id: "weekly" })]).map((each) => each.dagId),
    ["weekly", "nightly"],
  );
});

test("XComs come as JSON or as its text; a reference stays text", () => {
  assert.deepEqual(xcomValue('{"a": 1}'), { a: 1 });
  assert.deepEqual(xcomValue([1]), [1]);
  assert.equal(xcomValue("s3://bucket/key"), "s3://bucket/key");
});

test("findings keep their words as they are", () => {
  assert.equal(readFindings([{ pool: "p", check: "quota", result: "problem", message: "<b>0</b>", fix: "" }])[0]!.message, "<b>0</b>");
  assert.deepEqual(readFindings("s3://bucket/key"), []);
});

test("a machine is told with its reason to stay", () => {
  const row = { machine: "i-1", node: "n", group: "g", state: "usable", pods: [], gpus: 1, gpus_used: 0 };
  const lease = { run: "nightly/r", nodes: 1, until: "2026-03-01T09:00:00Z", live: true };
  const why = (of: object, status: object = {}) => {
    const [read] = readStatus([{ pool: "p", wanted: 0, machines: [{ ...row, ...of }], leases: [], ...status }]);
    return whyItStays(read!.machines[0]!, read!);
  };
  assert.equal(why({ pods: ["default/train"] }), "runs default/train");
  assert.equal(why({ state: "coming" }), "boots");
  assert.match(why({ state: "cordoned" }), /is being released/);
  assert.equal(why({}, { leases: [lease] }), "wanted by nightly/r");
  assert.match(why({}, { leases: [{ ...lease, live: false }] }), /no run wants it/);
});

test("the run of a lease, whose id may have anything but a slash", () => {
  assert.deepEqual(runOfLease("nightly/scheduled__2026-03-01T02:00:00+00:00/block"), {
    dagId: "nightly",
    runId: "scheduled__2026-03-01T02:00:00+00:00",
  });
  assert.equal(runOfLease("nobody"), null);
});

test("a task's pool is its rendered argument's, else its block's", () => {
  assert.equal(poolOf(task({ rendered_fields: { gpu_pool: { name: "big", kind: "eks" } } }))?.name, "big");
  assert.deepEqual(poolOf(task({ rendered_fields: { gpu_pool: "Truncated. {'kind': 'eks', 'name': 'big'..." } })), { name: "big", cluster: null });
  assert.deepEqual(poolOf(task()), { name: "train-gpu", cluster: null });
  assert.deepEqual(poolOf(task({ task_id: "group.train-gpu.ensure" })), { name: "train-gpu", cluster: null });
  assert.equal(poolOf(task({ task_id: "train" })), null);
});

test("a pod without a word of its pool is of its run's only one", () => {
  const ensure = task({ task_id: "train-gpu.ensure", operator_name: "GPU ensure: EnsureGpuPoolOperator", state: "running" });
  const pod = task({ task_id: "train", operator_name: "GPU training: GpuPodOperator", state: "deferred" });
  assert.deepEqual(liveRuns([ensure, pod]).map(({ pool, stage }) => [pool?.name, stage]), [["train-gpu", "working"]]);
  assert.deepEqual(liveRuns([pod]).map(({ pool }) => pool), [null]);
  assert.deepEqual(liveRuns([ensure]).map(({ stage }) => stage), ["booting"]);
  const retried = { ...pod, state: "up_for_retry" };
  assert.deepEqual(liveRuns([retried]).map(({ stage }) => stage), ["waiting"]);
  assert.deepEqual(liveRuns([retried, ensure]).map(({ stage }) => stage), ["booting"]);
  assert.deepEqual(liveRuns([task({ state: "deferred" })]).map(({ stage }) => stage), ["draining"]);
});

// tests/unit/tasks/test_roles.py has Airflow make these names, of subclasses.
const OF_A_TEAM: Record<string, Role> = {
  "GPU ensure: TeamEnsureGpuPoolOperator": "ensure",
  "GPU device_plugin: TeamInstallDevicePluginOperator": "device_plugin",
  "GPU training: TeamGpuPodOperator": "training",
  "GPU training: TeamGpuWorkloadOperator": "training",
  "GPU training: @task.gpu": "training",
  "GPU scale_down: Our sensor": "scale_down",
  "GPU status: TeamGpuPoolStatusOperator": "status",
  "GPU doctor: TeamGpuPoolDoctorOperator": "doctor",
  "GPU reap: TeamReapGpuPoolsOperator": "reap",
};

test("a subclass of an operator has the operator's role, and no other", () => {
  for (const [operator_name, role] of Object.entries(OF_A_TEAM)) {
    const roles = Object.values(OF_A_TEAM).filter((each) => hasRole(task({ operator_name }), each));
    assert.deepEqual([...new Set(roles)], [role], operator_name);
  }
  for (const operator_name of [null, "", "ScaleDownSensor", "scale_down", "GPU scale_down", "GPU scale_down_of_a_team: Sensor"]) {
    assert.equal(hasRole(task({ operator_name }), "scale_down"), false, `${operator_name}`);
  }
  assert.equal(ofRoles("ensure", "training"), "GPU ensure|GPU training");
});

test("a run of subclasses boots, works and drains, and their looks count", () => {
  const tasks = Object.keys(OF_A_TEAM).map((operator_name) => task({ operator_name, task_id: operator_name, state: "running" }));
  const stages = tasks.slice(0, 6).map((each) => liveRuns([each])[0]?.stage);
  assert.deepEqual(stages, ["booting", "booting", "working", "working", "working", "draining"]);
  const records = { tasks: tasks.slice(0, 6), bills: [], phases: () => [] } as unknown as RunRecords;
  const kinds = lanesOf(records, Date.parse("2026-03-02")).map(({ pieces }) => pieces[0]?.kind);
  assert.deepEqual(kinds, ["other", "other", "working", "working", "working", "other"]);
  for (const role of ["status", "doctor", "reap"] as const) {
    assert.deepEqual(lastOfEach(tasks, role, ["running"]).map((each) => OF_A_TEAM[each.task_id]), [role]);
  }
});

test("of each task the last that ended counts", () => {
  const looks = [
    task({ operator_name: "GPU status: GpuPoolStatusOperator", task_id: "status", end_date: "2026-03-01T01:00:00Z" }),
    task({ operator_name: "GPU status: GpuPoolStatusOperator", task_id: "status", end_date: "2026-03-01T02:00:00Z" }),
    task({ operator_name: "GPU status: GpuPoolStatusOperator", task_id: "status", state: "running", end_date: null }),
  ];
  assert.deepEqual(lastOfEach(looks, "status").map((each) => each.end_date), ["2026-03-01T02:00:00Z"]);
});

test("the period of looks is that of the schedule, and half an hour where there is none to see", () => {
  assert.equal(lookPeriod([task()]), 1_800_000);
  const later = task({ dag_run_id: "scheduled__2", run_after: "2026-03-01T02:10:00Z" });
  assert.equal(lookPeriod([task(), later, task({ dag_run_id: "manual__1", run_after: "2026-03-01T02:11:00Z" })]), 600_000);
});

test("a machine's lane is whole, in order, and as long as its life", () => {
  const machine = {
    machine: "i-1",
    node: "n",
    group: "g",
    market: "spot",
    launched_at: "2026-03-01T02:00:00Z",
    usable_at: "2026-03-01T02:02:00Z",
    gone_at: "2026-03-01T03:00:00Z",
    worked: [
      ["2026-03-01T02:30:00Z", "2026-03-01T02:50:00Z"],
      ["2026-03-01T02:05:00Z", "2026-03-01T02:20:00Z"],
    ] as [string, string][],
  };
  const { pieces } = laneOfMachine(machine, 0);
  assert.deepEqual(pieces.map((piece) => piece.kind), ["booting", "idle", "working", "idle", "working", "idle"]);
  assert.ok(pieces.every((piece, index) => index === 0 || piece.from === pieces[index - 1]!.to));
  assert.equal(pieces.reduce((sum, piece) => sum + piece.to - piece.from, 0), 3_600_000);
  const never = laneOfMachine({ ...machine, usable_at: null, worked: [] }, 0);
  assert.deepEqual(never.pieces.map((piece) => piece.kind), ["booting"]);
  const working = laneOfMachine({ ...machine, usable_at: null }, 0).pieces.map((piece) => piece.kind);
  assert.deepEqual(working, ["booting", "working", "booting", "working", "booting"]);
});

test("what the GPUs did is weighed by the time of which it is known, and is unknown without any", () => {
  const sampled = (share: number, known: number) => night({ ...BILL, computed: { share, known } });
  const total = [night(BILL), sampled(0.2, 1), sampled(0.8, 0.5)].reduce(add, noTotal());
  assert.deepEqual(computedIn(total), { share: 0.4, known: 0.5 });
  assert.equal(computedIn(add(noTotal(), night(BILL))), null);
  for (const computed of [null, undefined, 3, {}, { share: "0.4", known: 1 }]) {
    assert.equal(readUsage({ ...BILL, computed })!.computed, null);
  }
});

test("what had no machine is told by Ensure's result and by what it left when it failed, passed over candidates apart", () => {
  const tried = [
    { zone: "us-west-2a", instance_type: "g6.xlarge", capacity_type: "spot", times: 2, last: "2026-03-01T02:00:00+00:00", why: "none" },
    { zone: "us-west-2b", instance_type: "g6.xlarge", capacity_type: "spot", times: 0, why: "none" },
  ];
  assert.deepEqual(readRefusals({ tried }), readRefusals(tried));
  assert.deepEqual(readRefusals(tried).map((each) => [each.zone, each.times]), [["us-west-2a", 2]]);
  assert.deepEqual(readRefusals("xcom://elsewhere"), []);
});

test("a run's errors come with what may have left machines first, and without the verdict that repeats them", () => {
  const failed = (type: string, map_index = -1) => readFailure({ task_id: "train", map_index, type, what: "It failed.", fix: "" })!;
  const [hung, left, verdict] = [failed("GangHung", 2), failed("PoolNotReleased"), failed("BlockFailed")];
  assert.deepEqual(inOrder([verdict, hung, left]), [left, hung]);
  assert.deepEqual(inOrder([verdict]), [verdict]);
  assert.equal(hung.task, "train [2]");
  for (const value of [null, "s3://bucket/key", {}, { type: 3 }]) assert.equal(readFailure(value), null);
});

test("each GPU has what it did, and one that was busy at a draw near idle is told", () => {
  const gpu = { rank: 0, gpu: 1, samples: 9, mean: 99.5, memory_mib_max: 70_000, power_w_mean: 70, power_limit_w: 700, spun: true };
  const one = (changed: object) => readGpus({ gpus: [{ ...gpu, ...changed }] })[0]!;
  assert.deepEqual(one({}), { rank: "0", gpu: 1, mean: 99.5, memory: 70_000, power: 70, limit: 700, spun: true });
  assert.deepEqual([false, null, undefined].map((spun) => one({ spun }).spun), [false, false, false], "unknown is no hang");
  for (const value of [null, "s3://bucket/key", {}, { gpus: 8 }]) assert.deepEqual(readGpus(value), []);
});

test("a training that may hang has its run, its pods and since when; of an earlier release none is known", () => {
  const hang = { pool: "p", run: "nightly/r/block", pod: "default/train-0", pods: 8, since: "2026-03-01T03:12:00Z", shown_by: "busy" };
  const hangsOf = (hangs: unknown) => readStatus([{ pool: "p", hangs }])[0]!.hangs;
  assert.deepEqual(hangsOf([hang]), [
    { run: "nightly/r/block", pod: "default/train-0", pods: 8, since: "2026-03-01T03:12:00Z", shownBy: "busy" },
  ]);
  assert.deepEqual(hangsOf([{ ...hang, pods: "8", since: "today" }]).map((each) => [each.pods, each.since]), [[null, null]]);
  assert.deepEqual(hangsOf(undefined), []);
});

test("demand with a limit has what is left of it; without one, or of an earlier release, it has none", () => {
  const budgetOf = (budget: unknown) => readStatus([{ pool: "p", leases: [{ run: "nightly/r", budget }] }])[0]!.leases[0]!.budget;
  const at = "2026-03-01T02:00:00Z";
  assert.deepEqual(budgetOf({ max_cost: 250, spent: 12.4, at, left: 200, per_hour: 59, raised: "" }), {
    most: 250,
    spent: 12.4,
    at,
    left: 200,
    raised: "",
  });
  assert.deepEqual([budgetOf({}), budgetOf(undefined), budgetOf("unknown")], [null, null, null]);
});

const EKS = { kind: "eks", name: "train", aws_conn_id: "aws_default", region: "us-west-2", cluster_name: "ml" };
const GKE = { kind: "gke", gcp_conn_id: "g", impersonation_chain: ["a@b", "c@d"], project_id: "ml-project", location: "us-central1", cluster_name: "ml" };

test("a spec's cluster is called as GpuPool.cluster_identity calls it", () => {
  // tests/unit/test_web_ui.py has the same pools in Python.
  assert.equal(clusterOf(EKS), "eks/aws_default/us-west-2/ml");
  assert.equal(clusterOf({ ...EKS, aws_conn_id: null }), "eks/None/us-west-2/ml");
  assert.equal(clusterOf(GKE), "gke/g/a@b,c@d/ml-project/us-central1/ml");
  assert.equal(clusterOf({ ...GKE, impersonation_chain: null }), "gke/g//ml-project/us-central1/ml");
  assert.equal(clusterOf({ ...GKE, impersonation_chain: "a@b" }), "gke/g/a@b/ml-project/us-central1/ml");
  assert.equal(clusterOf({ kind: "kubernetes", kubernetes_conn_id: "k", cluster_context: null }), "kubernetes/k/");
  assert.equal(clusterOf({ ...EKS, region: undefined }), null);
  assert.equal(clusterOf({ kind: "tpu" }), null);
});

const HERE = { name: "train", cluster: "eks/aws_default/us-west-2/ml" };
const THERE = { name: "train", cluster: "eks/team_b/us-west-2/ml" };
const SOMEWHERE = { name: "train", cluster: null };

test("pools of one name in two clusters are two, and a record without a cluster is of the only one", () => {
  assert.deepEqual(once([HERE, THERE, HERE]), [HERE, THERE]);
  assert.deepEqual(meant(SOMEWHERE, [HERE, HERE]), HERE);
  assert.deepEqual(meant(SOMEWHERE, [HERE, THERE]), SOMEWHERE);
  assert.deepEqual(meant(SOMEWHERE, [{ ...HERE, name: "big" }]), SOMEWHERE);
  assert.deepEqual(meant(THERE, [HERE]), THERE);
  assert.equal(titleOf(HERE, [HERE, THERE]), "train (eks/aws_default/us-west-2/ml)");
  assert.equal(titleOf(HERE, [HERE]), "train");
});

test("a run on two pools of one name is shown once on each", () => {
  const ensures = [EKS, { ...EKS, aws_conn_id: "team_b" }].map((gpu_pool, index) =>
    task({ task_id: `block${index}.ensure`, operator_name: "GPU ensure: EnsureGpuPoolOperator", state: "running", rendered_fields: { gpu_pool } }),
  );
  assert.deepEqual(liveRuns(ensures).map(({ pool }) => pool), [HERE, THERE]);
  const scaleDown = task({ task_id: "train.scale_down", state: "running" });
  assert.deepEqual(liveRuns([ensures[0]!, scaleDown]).map(({ pool }) => pool), [HERE]);
});

test("a pool's runs are extended by a DAG that had this pool, whatever has run last elsewhere", () => {
  const left = readExtends([{ pool: "train", cluster: HERE.cluster }, { pool: "old" }, "train", { cluster: "x" }]);
  const found = dagsOf([
    { dagId: "of_team_b", pools: [THERE, SOMEWHERE] },
    { dagId: "ours", pools: left },
    { dagId: "older", pools: [HERE] },
  ]);
  assert.deepEqual([...found], [[keyOf(THERE), "of_team_b"], [keyOf(HERE), "ours"]]);
  assert.deepEqual(readExtends("s3://bucket/key"), []);
  assert.deepEqual(readStatus([{ pool: "train", cluster: HERE.cluster }])[0]?.pool, HERE);
});

const status = (changed: Record<string, unknown> = {}) => readStatus([{ pool: "train-gpu", cluster: "k8s", wanted: 0, machines: [], leases: [], ...changed }])[0]!;

const seen = (changed: Record<string, unknown> = {}, at = "2026-03-02T00:00:00Z"): PoolNow => ({ status: status(changed), at, task: task() });

const nowWith = (changed: Partial<Now> = {}): Now => ({
  live: [],
  pools: [],
  findings: [],
  leftovers: [],
  unreadable: [],
  red: [],
  running: [],
  extenders: new Map(),
  period: 1_800_000,
  at: Date.parse("2026-03-02T00:00:00Z"),
  ...changed,
});

const training = (start: string): LiveRun => ({
  dagId: "nightly",
  runId: "r1",
  pool: { name: "train-gpu", cluster: "k8s" },
  stage: "working",
  tasks: [task({ start_date: start, state: "deferred" })],
});

test("a training works where the last check saw its pod, and nowhere else", () => {
  const run = training("2026-03-01T23:00:00Z");
  const on = (...runs: string[]) => seen({ machines: [{ machine: "i-1", runs }] });
  assert.equal(seenStage(run, on("nightly/r1")), "working");
  assert.equal(seenStage(run, on("other/r1")), "waiting for its pod");
  assert.equal(seenStage(run, seen()), "waiting for its pod");
  assert.equal(seenStage(run, seen({}, "2026-03-01T22:00:00Z")), "not checked yet");
  assert.equal(seenStage(run, seen({ machines: [{ machine: "i-1" }] })), "working", "a record of an earlier release");
  assert.equal(seenStage({ ...run, stage: "booting" }, on("nightly/r1")), "booting");
});

test("what runs costs as much an hour as its priced machines, and what has no price is told", () => {
  const machines = [{ machine: "i-1" }];
  const pools = [seen({ machines, cost_per_hour: 2, currency: "USD" }), seen({ machines, cost_per_hour: "unknown" }), seen()];
  const found = running(nowWith({ pools, live: [training("2026-03-01T23:00:00Z")] }), () => undefined);
  assert.deepEqual([found.runs, found.nodes, found.cost, found.unpriced], [1, 2, { USD: 2 }, 1]);
});

test("the last night is the newest run's, with all that were due in the day before it", () => {
  const due = (at: string, state = "success") => ({ ...night(BILL, { run_after: at, dag_run_id: at, state }), red: state === "failed" });
  const last = lastNight([due("2026-03-01T01:00:00Z"), due("2026-03-02T02:00:00Z"), due("2026-03-02T01:00:00Z", "failed")])!;
  assert.deepEqual([last.total.runs.size, last.failed.length, last.at], [2, 1, "2026-03-02T02:00:00Z"]);
  assert.equal(lastNight([]), null);
});

test("a pool needs somebody after a failed scale-down, with machines that no run wants, and with what the janitor left", () => {
  const failed = [{ ...night(null, { state: "failed" }), red: true }];
  const machines = [{ machine: "i-1" }];
  const before = "2026-03-01T01:00:00Z";
  assert.match(needOf(seen({}, before), [], failed, nowWith()), /scale-down failed/);
  assert.match(needOf(seen({ machines }), [], failed, nowWith()), /scale-down failed/);
  assert.equal(needOf(seen(), [], failed, nowWith()), "", "a later check has seen that nothing is left");
  assert.match(needOf(seen({ machines, unwanted: 1 }), [], [], nowWith()), /no run wants/);
  assert.equal(needOf(seen({ machines, unwanted: 0 }), [], [], nowWith()), "", "machines that are always there");
  const leftovers = [{ leftover: { pool: "train-gpu", kind: "machine", name: "i-1", why: "" }, task: task() }];
  assert.match(needOf(seen(), [], [], nowWith({ leftovers })), /janitor/);
});

test("an instance of a mapped task follows the one before it, whichever began first", () => {
  const mapped = [2, 0, 1].map((index, order) => task({ task_id: "train", map_index: index, start_date: `2026-03-01T02:00:0${order}Z` }));
  const order = inOrderOfBegin([task({ task_id: "later", start_date: null }), ...mapped, task({ start_date: "2026-03-01T01:00:00Z" })]);
  assert.deepEqual(order.map((each) => `${each.task_id} ${each.map_index}`), ["train-gpu.scale_down -1", "train 0", "train 1", "train 2", "later -1"]);
});

test("a message opens after its first sentence or line", () => {
  assert.deepEqual(firstSentence("Rank 1 failed. It is v1.2 on node n1."), ["Rank 1 failed.", "It is v1.2 on node n1."]);
  assert.deepEqual(firstSentence("Traceback:\n  file x"), ["Traceback:", "file x"]);
  assert.deepEqual(firstSentence("No end"), ["No end", ""]);
});
