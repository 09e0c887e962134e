// The tab on a DAG run: its nodes from the first request until they were gone, on one clock, and their cost.

import { Badge, Box, Spinner, Table, Text } from "@chakra-ui/react";

import { eachOf, list, runPath } from "./api.ts";
import { Chart } from "./lanes-chart.tsx";
import { clock, count, day, duration, money, percent, timeZone, UNKNOWN } from "./format.ts";
import { lanesOf, type RunRecords } from "./lanes.ts";
import { type Entry, valueOf, whyUnreadable } from "./load.ts";
import { extraCost } from "./nights.ts";
import {
  type GpuUse,
  inOrder,
  PHASES,
  readFailure,
  readGpus,
  readRefusals,
  readTimeline,
  readUsage,
  readUtilization,
  type Refusal,
  type TimedPhase,
  type Usage,
} from "./records.ts";
import { hasRole, inOrderOfBegin, LIVE, ofRoles, OF_A_RUN, poolOf, type Task } from "./tasks.ts";
import { useLoaded } from "./use-loaded.ts";
import { gpusComputed, Legend, Notice, Section, Sentence, TaskLink, taskName, Wide, Working } from "./words.tsx";

type Props = { dagId: string; runId: string };

const KEYS = ["usage", "timeline", "utilization", "tried", "error", "return_value"];

const keyOf = (taskId: string, mapIndex: number) => JSON.stringify([taskId, mapIndex]);

async function loadRun({ dagId, runId }: Props): Promise<RunRecords> {
  const run = runPath(dagId, runId);
  const query = { operator_name_prefix_pattern: ofRoles(...OF_A_RUN), order_by: "start_date" };
  const [tasks, entries] = await Promise.all([
    list<Task>(`${run}/taskInstances`, "task_instances", query, 300),
    list<Entry>(`${run}/taskInstances/~/xcomEntries`, "xcom_entries", { xcom_key_pattern: KEYS.join("|") }, 900),
  ]);
  const of = (key: string) => entries.found.filter((entry) => entry.key === key);
  const ensures = new Set(tasks.found.filter((task) => hasRole(task, "ensure")).map((task) => task.task_id));
  const wanted = [...of("timeline"), ...of("return_value").filter((entry) => ensures.has(entry.task_id))];
  const phases = new Map<string, TimedPhase[]>();
  const refused = new Map<string, Refusal[]>();
  await eachOf(of("tried"), async (entry) => {
    refused.set(keyOf(entry.task_id, entry.map_index), readRefusals(await valueOf(entry)));
  });
  await eachOf(wanted, async (entry) => {
    const value = await valueOf(entry);
    if (ensures.has(entry.task_id)) refused.set(keyOf(entry.task_id, entry.map_index), readRefusals(value));
    const timeline = entry.key === "timeline" ? value : (value as { timeline?: unknown } | null)?.timeline;
    phases.set(keyOf(entry.task_id, entry.map_index), readTimeline(timeline));
  });
  const computed = new Map<string, number | null>();
  const gpus = new Map<string, GpuUse[]>();
  await eachOf(of("utilization"), async (entry) => {
    const value = await valueOf(entry);
    computed.set(keyOf(entry.task_id, entry.map_index), readUtilization(value));
    gpus.set(keyOf(entry.task_id, entry.map_index), readGpus(value));
  });
  const failures = await eachOf(of("error"), async (entry) => readFailure(await valueOf(entry)));
  const left = new Map(of("usage").map((entry) => [keyOf(entry.task_id, entry.map_index), entry]));
  const scaleDowns = tasks.found.filter((task) => hasRole(task, "scale_down"));
  const bills = await eachOf(scaleDowns, async (task) => {
    const entry = left.get(keyOf(task.task_id, task.map_index));
    const value = entry ? await valueOf(entry) : null;
    const usage = readUsage(value);
    return { task, pool: poolOf(task), usage, why: usage ? "" : whyUnreadable(value) };
  });
  return {
    tasks: inOrderOfBegin(tasks.found),
    phases: (task) => phases.get(keyOf(task.task_id, task.map_index)) ?? [],
    computed: (task) => computed.get(keyOf(task.task_id, task.map_index)) ?? null,
    gpus: tasks.found
      .map((task) => ({ task, gpus: gpus.get(keyOf(task.task_id, task.map_index)) ?? [] }))
      .filter((each) => each.gpus.length),
    failures: inOrder(failures.filter((each) => each !== null)),
    refusals: tasks.found
      .map((task) => ({ task, refusals: refused.get(keyOf(task.task_id, task.map_index)) ?? [] }))
      .filter((each) => each.refusals.length),
    bills,
  };
}


export const RunTab = (props: Props) => {
  const { value, error } = useLoaded(`run ${props.dagId} ${props.runId}`, () => loadRun(props), 60_000);
  return (
    <Box p={4} w="100%" minW={0}>
      {error ? <Notice status="error">The run could not be read: {error}</Notice> : null}
      {!value && !error ? <Spinner /> : null}
      {value ? <Run records={value} /> : null}
    </Box>
  );
};

const Run = ({ records }: { records: RunRecords }) => {
  if (!records.tasks.length) return <Sentence>This run wanted no GPU nodes.</Sentence>;
  const lanes = lanesOf(records, Date.now());
  return (
    <>
      <Text fontSize="sm" color="fg.muted">
        Times are in {timeZone()}.
      </Text>
      {records.failures.map((failure) => (
        <Notice key={failure.task} status="error" title={`${failure.task}: ${failure.type}`}>
          {`${failure.what} ${failure.fix}`}
        </Notice>
      ))}
      {lanes.length ? (
        <Section title="From request to release">
          <Chart lanes={lanes} />
          <Legend />
          <Clock records={records} />
          <Refusals records={records} />
        </Section>
      ) : (
        <Sentence>No task of this run that needs GPU nodes has begun.</Sentence>
      )}
      {records.gpus.length ? (
        <Section title="What each GPU did">
          <Gpus records={records} />
        </Section>
      ) : null}
      <Section title="What it cost">
        {records.bills.length ? null : <Sentence>This run has no scale-down, so nothing was billed to it.</Sentence>}
        {records.bills.map((bill) => (
          <Bill key={keyOf(bill.task.task_id, bill.task.map_index)} {...bill} />
        ))}
      </Section>
    </>
  );
};

/** As in the spec and the log: "on-demand" for EKS's ON_DEMAND. */
const market = (capacityType: string) => capacityType.toLowerCase().replace("_", "-");

const Refusals = ({ records }: { records: RunRecords }) =>
  records.refusals.map(({ task, refusals }) => (
    <Notice key={keyOf(task.task_id, task.map_index)} status="info" title="The cloud had no machine for">
      {refusals.map((each) => (
        <Box key={`${each.instance_type} ${each.capacity_type} ${each.zone}`} data-refusal={each.zone}>
          {each.instance_type} {market(each.capacity_type)} in {each.zone},{" "}
          {each.times === 1 ? "tried once" : `tried ${each.times} times`}
          {each.last ? `, last at ${clock(each.last)}` : ""}: {each.why}
        </Box>
      ))}
      <TaskLink task={task} />
    </Notice>
  ));

const Bill = ({ task, pool, usage, why }: RunRecords["bills"][number]) => {
  if (!usage) {
    const ended = !LIVE.includes(task.state ?? "") && (task.state === "success" || task.state === "failed");
    return (
      <Sentence>
        {pool?.name ?? "Unknown pool"}: <TaskLink task={task} />{" "}
        {ended ? `${why}, so what its nodes cost is unknown.` : "has not ended; it writes the bill."}
      </Sentence>
    );
  }
  return (
    <Box my={3} data-bill={task.task_id}>
      <Text>
        {pool?.name ?? "Unknown pool"}: {usage.machines === null ? "unknown nodes" : count(usage.machines, "node")}, {words(usage)} (
        <TaskLink task={task} />)
      </Text>
      {task.state === "failed" ? <Notice status="error">The scale-down failed: see its log for what is left.</Notice> : null}
      {usage.over_max_cost ? (
        <Notice status="warning">This is {money(usage.over_max_cost, usage.currency)} more than max_cost.</Notice>
      ) : null}
      {usage.at_least ? <Notice status="warning">The true numbers may be higher: {usage.at_least}</Notice> : null}
      <Autoscaler usage={usage} />
      {usage.left_out ? (
        <Sentence>{count(usage.left_out, "machine")} more are in the bill and not in the chart.</Sentence>
      ) : null}
    </Box>
  );
};

function words(usage: Usage): string {
  const computed = usage.computed ? `; ${gpusComputed(usage.computed)}` : "";
  const phases = PHASES.map(
    (phase) =>
      `${duration(usage.seconds[phase])} ${phase} (${money(usage.cost[phase], usage.currency)}${phase === "working" ? computed : ""})`,
  );
  return `${phases.join(", ")}; cost in all: ${usage.at_least ? "at least " : ""}${money(usage.cost.total, usage.currency)}`;
}

const Autoscaler = ({ usage }: { usage: Usage }) => {
  const extra = extraCost(usage);
  const minutes = usage.autoscaler?.idle_minutes ?? 10;
  return (
    <Text fontSize="sm" color="fg.muted">
      An autoscaler with {count(minutes, "idle minute")}: {extra === null ? "unknown" : `+${money(extra, usage.currency)}`}
      {usage.autoscaler ? ` (${duration(usage.autoscaler.seconds)} of node time)` : ""}
    </Text>
  );
};

/** One training's samples: all that is known about its GPU use. */
const wholly = (share: number | null) => (share === null ? null : { share, known: 1 });

const Clock = ({ records }: { records: RunRecords }) => (
  <Wide>
    <Table.Root size="sm" variant="line" mt={3} style={{ tableLayout: "fixed" }} aria-label="Times">
      <Table.Header>
        <Table.Row>
          <Table.ColumnHeader w="28%">Task</Table.ColumnHeader>
          <Table.ColumnHeader w="18%">State</Table.ColumnHeader>
          <Table.ColumnHeader w="24%">From, to</Table.ColumnHeader>
          <Table.ColumnHeader w="30%">Phases</Table.ColumnHeader>
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {records.tasks.map((task) => (
          <Table.Row key={keyOf(task.task_id, task.map_index)} data-task={taskName(task)}>
            <Table.Cell overflowWrap="anywhere">
              <TaskLink task={task} />
              {task.try_number > 1 ? ` (try ${task.try_number})` : ""}
            </Table.Cell>
            <Table.Cell>{task.state ?? "not begun"}</Table.Cell>
            <Table.Cell>
              {task.start_date ? `${day(task.start_date)} ${clock(task.start_date)}` : ""}
              {task.end_date ? ` – ${clock(task.end_date)}` : ""}
            </Table.Cell>
            <Table.Cell overflowWrap="anywhere">
              <Working
                time={records
                  .phases(task)
                  .map((phase) => `${phase.at ? `${clock(phase.at)} ` : ""}${phase.phase} ${duration(phase.seconds)}`)
                  .join(", ")}
                computed={wholly(records.computed(task))}
              />
            </Table.Cell>
          </Table.Row>
        ))}
      </Table.Body>
    </Table.Root>
  </Wide>
);

const Gpus = ({ records }: { records: RunRecords }) => (
  <Wide>
    <Table.Root size="sm" variant="line" mt={3} style={{ tableLayout: "fixed" }} aria-label="GPUs">
      <Table.Header>
        <Table.Row>
          {["Task", "Rank", "GPU", "Computed", "Memory in use, at most", "Draw, mean"].map((name) => (
            <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {records.gpus.flatMap(({ task, gpus }) =>
          gpus.map((each, index) => (
            <Table.Row key={`${keyOf(task.task_id, task.map_index)} ${index}`} data-gpu={`${each.rank} ${each.gpu}`}>
              <Table.Cell overflowWrap="anywhere">{index ? "" : <TaskLink task={task} />}</Table.Cell>
              <Table.Cell>{each.rank}</Table.Cell>
              <Table.Cell>{each.gpu ?? UNKNOWN}</Table.Cell>
              <Table.Cell>
                {each.mean === null ? UNKNOWN : percent(each.mean / 100)}
                {each.spun ? <Badge colorPalette="orange" ml={2}>busy, at a draw near idle: did it hang?</Badge> : null}
              </Table.Cell>
              <Table.Cell>{each.memory === null ? UNKNOWN : `${Math.round(each.memory)} MiB`}</Table.Cell>
              <Table.Cell>
                {each.power === null ? UNKNOWN : `${Math.round(each.power)} W`}
                {each.limit === null ? "" : ` of ${Math.round(each.limit)} W`}
              </Table.Cell>
            </Table.Row>
          )),
        )}
      </Table.Body>
    </Table.Root>
  </Wide>
);
