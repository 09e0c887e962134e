// Browse > GPU pools, from top to bottom: three answers, what would stop a night, each pool by its need, thirty nights.

import { Badge, Box, Button, Code, Heading, Spinner, Table, Text } from "@chakra-ui/react";
import { type ReactNode, useEffect, useRef } from "react";
import { useSearchParams } from "react-router-dom";

import { Bars, costOf, extraOf, sum } from "./chart.tsx";
import { areListed, count, day as dayOf, duration, LISTED, moment, money, plain, timeZone } from "./format.ts";
import { DAYS, loadNights, loadNow, type Nights, type Now } from "./load.ts";
import { add, beginOf, byDag, byDay, computedIn, extraCost, type Night, noTotal, type Total } from "./nights.ts";
import { keyOf, meant, once, type PoolId, titleOf } from "./pools.ts";
import { PHASES } from "./records.ts";
import { PoolCard, PoolRow } from "./pool-card.tsx";
import { isInUse, lastNight, needOf, running } from "./summary.ts";
import { useLoaded } from "./use-loaded.ts";
import { DagLink, Failed, Notice, NodesLink, RunLink, Section, Sentence, TaskLink, Wide, Working } from "./words.tsx";

/** The column for the extra cost of an autoscaler that waits ten idle minutes. */
const MORE = "More with an autoscaler";
const A_LOOK = 75_000;
const HISTORY = 600_000;

export const Page = () => {
  const now = useLoaded("now", loadNow, A_LOOK);
  const nights = useLoaded("nights", loadNights, HISTORY);
  useWhenOneEnds(now.value, nights.reload);
  return (
    <Box p={4} maxW="1400px" w="100%" mx="auto">
      <Box display="flex" alignItems="baseline" gap={3} flexWrap="wrap">
        <Heading as="h1" size="lg">
          GPU pools
        </Heading>
        <Text fontSize="sm" color="fg.muted">
          Times are in {timeZone()}.
        </Text>
      </Box>
      {now.error ? <Notice status="error">What the pools are now could not be read: {now.error}</Notice> : null}
      {now.value ? <Summary now={now.value} nights={nights.value} /> : null}
      {now.value ? <Health now={now.value} /> : null}
      {now.value ? <Pools now={now.value} nights={nights.value} reload={now.reload} /> : null}
      {!now.value && !now.error ? <Spinner mt={4} /> : null}
      {nights.error ? <Notice status="error">The nights could not be read: {nights.error}</Notice> : null}
      {nights.value ? <History found={nights.value} /> : null}
      {!nights.value && !nights.error ? <Spinner mt={4} /> : null}
    </Box>
  );
};

/** Call `then` when a run no longer has an unfinished task of this package: it has left a bill. */
function useWhenOneEnds(now: Now | null, then: () => void) {
  const before = useRef(new Set<string>());
  useEffect(() => {
    if (!now) return;
    const live = new Set(now.live.map((run) => `${run.dagId} ${run.runId} ${run.pool && keyOf(run.pool)}`));
    if ([...before.current].some((run) => !live.has(run))) then();
    before.current = live;
  }, [now]);
}

/** The three answers that fit on the first screen. */
const Summary = ({ now, nights }: { now: Now; nights: Nights | null }) => {
  const seen = new Map(now.pools.map((pool) => [keyOf(pool.status.pool), pool]));
  const found = running(now, (run) => (run.pool ? seen.get(keyOf(run.pool)) : undefined));
  const stages = [...found.stages].map(([stage, runs]) => `${runs} ${stage}`).join(", ");
  const cost = Object.keys(found.cost).length ? sum(found.cost) : found.nodes ? "" : money(0, "");
  const unpriced = found.unpriced ? `${cost ? ", and " : ""}${count(found.unpriced, "pool")} of unknown price` : "";
  const last = nights ? lastNight(nights.nights) : null;
  const worst = (result: string) => now.findings.filter(({ finding }) => finding.result === result).length;
  const problems = worst("problem") + now.leftovers.length;
  const warnings = worst("warning");
  return (
    <Box display="grid" gridTemplateColumns="repeat(auto-fit, minmax(260px, 1fr))" gap={3} mt={3} data-summary="">
      <Answer name="Now" is={found.runs ? count(found.runs, "run") : "Nothing runs"} more={stages}>
        {count(found.nodes, "machine")}: {cost}
        {unpriced} an hour, as far as checks have seen
      </Answer>
      <Answer
        name="Last night"
        is={last ? (last.failed.length ? `${last.total.redRuns.size} of ${count(last.total.runs.size, "run")} red` : `${count(last.total.runs.size, "run")}, all green`) : nights ? "No night yet" : "…"}
        bad={Boolean(last?.failed.length)}
        more={last ? `cost ${costOf(last.total)}` : ""}
      >
        {last ? `until ${moment(last.at)}` : ""}
        {last?.failed[0]?.failure ? `: ${last.failed[0].failure.type} in ${last.failed[0].task.dag_id}` : ""}
      </Answer>
      <Answer
        name="Tonight"
        is={!now.findings.length ? "Not checked" : problems ? count(problems, "problem") : warnings ? count(warnings, "warning") : "Nothing found"}
        bad={problems > 0}
        more={problems && warnings ? count(warnings, "warning") : ""}
      >
        {now.findings.length ? "by the doctor's last check" : "no doctor has run"}
      </Answer>
    </Box>
  );
};

type AnswerProps = { name: string; is: string; more: string; bad?: boolean; children: ReactNode };

const Answer = ({ name, is, more, bad, children }: AnswerProps) => (
  <Box borderWidth={1} borderRadius="md" p={3} data-answer={name}>
    <Text fontSize="sm" color="fg.muted">
      {name}
    </Text>
    <Text fontSize="xl" fontWeight="semibold" color={bad ? "fg.error" : undefined}>
      {is}
    </Text>
    {more ? <Text fontSize="sm">{more}</Text> : null}
    <Text fontSize="sm" color="fg.muted" overflowWrap="anywhere">
      {children}
    </Text>
  </Box>
);

const sentence = (said: string) => (/[.!?]$/.test(said) ? said : `${said}.`);

const Health = ({ now }: { now: Now }) => {
  const worst = (result: string) => now.findings.filter(({ finding }) => finding.result === result);
  const problems = worst("problem");
  const warnings = worst("warning");
  const unchecked = worst("unchecked");
  return (
    <Section title="What would stop a night">
      {problems.map(({ finding, task }, index) => (
        <Notice key={index} status="error" title={`${finding.pool}: ${finding.check}`}>
          {sentence(finding.message)} {finding.fix ? `What to do: ${finding.fix} ` : ""}(<TaskLink task={task} />)
        </Notice>
      ))}
      {now.leftovers.map(({ leftover, task }, index) => (
        <Notice key={index} status="error" title={`${leftover.pool}: ${leftover.kind} ${leftover.name} is left over`}>
          {leftover.why} (<TaskLink task={task} />)
        </Notice>
      ))}
      {warnings.map(({ finding, task }, index) => (
        <Notice key={index} status="warning" title={`${finding.pool}: ${finding.check}`}>
          {sentence(finding.message)} {finding.fix ? `What to do: ${finding.fix} ` : ""}(<TaskLink task={task} />)
        </Notice>
      ))}
      {unchecked.map(({ finding, task }, index) => (
        <Notice key={index} status="info" title={`${finding.pool}: ${finding.check}, not checked`}>
          {sentence(finding.message)} {finding.fix ? `What to do: ${finding.fix} ` : ""}(<TaskLink task={task} />)
        </Notice>
      ))}
      {now.unreadable.map(({ task, why }, index) => (
        <Notice key={index} status="info">
          <TaskLink task={task} /> of {task.dag_id} {why}, so what it saw is unknown here.
        </Notice>
      ))}
      {now.findings.length && !problems.length && !warnings.length && !unchecked.length && !now.leftovers.length ? (
        <Sentence>The doctor found nothing that would stop a night.</Sentence>
      ) : null}
      {!now.findings.length ? (
        <Sentence>No doctor has checked yet: schedule a DAG with GpuPoolDoctorOperator, which finds what would stop a night.</Sentence>
      ) : null}
    </Section>
  );
};

const Pools = ({ now, nights, reload }: { now: Now; nights: Nights | null; reload: () => void }) => {
  const seen = new Map(now.pools.map((pool) => [keyOf(pool.status.pool), pool]));
  const live = now.live.map((run) => run.pool).filter((pool) => pool !== null);
  const past = (nights?.nights ?? []).map((night) => night.pool).filter((pool) => pool !== null);
  const named = [...now.pools.map((pool) => pool.status.pool), ...live, ...past];
  const pools = once(named.map((pool) => meant(pool, named)));
  const isOf = (pool: PoolId) => (each: { pool: PoolId | null }) =>
    each.pool !== null && keyOf(meant(each.pool, named)) === keyOf(pool);
  const lost = now.live.filter((run) => run.pool === null);
  const shown = pools.map((pool) => {
    const own = { pool, title: titleOf(pool, pools), seen: seen.get(keyOf(pool)) };
    const [live, of] = [now.live.filter(isOf(pool)), (nights?.nights ?? []).filter(isOf(pool))];
    return { ...own, live, nights: of, need: needOf(own.seen, live, of, now), now, reload };
  });
  const first = [...shown.filter((each) => each.need), ...shown.filter((each) => !each.need && isInUse(each.seen, each.live))];
  const rest = shown.filter((each) => !first.includes(each));
  const unseen = shown.filter((each) => !each.seen).map((each) => each.title);
  return (
    <Section title="Pools now">
      {!pools.length ? (
        <Sentence>
          No task has checked a pool yet, and no run has used one in {DAYS} days. Schedule a DAG with GpuPoolStatusOperator,
          as in example_dags/janitor.py.
        </Sentence>
      ) : null}
      {now.running.length ? (
        <Sentence>
          A check is running: <TaskLink task={now.running[0]!} />.
        </Sentence>
      ) : null}
      {first.map((each) => (
        <PoolCard key={keyOf(each.pool)} {...each} />
      ))}
      {lost.map((run) => (
        <Sentence key={`${run.dagId} ${run.runId}`}>
          <RunLink dagId={run.dagId} runId={run.runId} /> has tasks for GPUs too; their pool is not known yet.
        </Sentence>
      ))}
      {unseen.length ? (
        <Notice status="info" title="No task has checked these pools yet">
          {unseen.join(", ")}. Put this into a DAG on a schedule, as example_dags/janitor.py does:{" "}
          <Code whiteSpace="pre-wrap">{'GpuPoolStatusOperator(task_id="status", gpu_pools=[...])'}</Code>
        </Notice>
      ) : null}
      {rest.length ? (
        <Wide>
          <Table.Root size="sm" variant="line" mt={3} style={{ tableLayout: "fixed" }} aria-label="Pools at zero">
            <Table.Header>
              <Table.Row>
                {["At zero", "Last night", "Checked"].map((name) => (
                  <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
                ))}
                <Table.ColumnHeader w="120px" />
              </Table.Row>
            </Table.Header>
            <Table.Body>
              {rest.map((each) => (
                <PoolRow key={keyOf(each.pool)} {...each} />
              ))}
            </Table.Body>
          </Table.Root>
        </Wide>
      ) : null}
    </Section>
  );
};

const History = ({ found }: { found: Nights }) => {
  const [query, setQuery] = useSearchParams();
  const choose = (name: string, value: string | null) =>
    setQuery((before) => {
      const after = new URLSearchParams(before);
      if (value === null) after.delete(name);
      else after.set(name, value);
      return after;
    });
  const pool = query.get("pool");
  const chosenDay = query.get("day");
  const pools = [...new Set(found.nights.map((night) => night.pool?.name ?? "unknown"))].sort();
  const nights = found.nights.filter((night) => !pool || (night.pool?.name ?? "unknown") === pool);
  const shown = nights.filter((night) => !chosenDay || dayOf(beginOf(night)) === chosenDay);
  const total = nights.reduce(add, noTotal());
  const filters = pools.length > 1 ? <Filter names={pools} chosen={pool} choose={(name) => choose("pool", name)} /> : null;
  if (!found.nights.length) {
    return (
      <Section title={`The last ${DAYS} days`}>
        <Sentence>No run has scaled a GPU pool down in the last {DAYS} days.</Sentence>
      </Section>
    );
  }
  return (
    <>
      <Section title={`The last ${DAYS} days`} aside={filters}>
        {found.unread ? <Sentence>{count(found.unread, "earlier night")} are still being read.</Sentence> : null}
        {found.total > found.nights.length + found.unread ? (
          <Sentence>
            The newest {found.nights.length + found.unread} of {found.total} scale-downs are shown; the others have not ended, or are older.
          </Sentence>
        ) : null}
        {found.blind ? (
          <Sentence>You may not read DAG runs, so a night is called red here only if its scale-down failed.</Sentence>
        ) : null}
        <Sentence>
          <span data-total="">
            {count(total.runs.size, "night")}, {total.redRuns.size} of them red; cost {costOf(total)}
          </span>
        </Sentence>
        <Bars days={byDay(nights, Date.now(), DAYS)} onPick={(day) => choose("day", chosenDay === day ? null : day)} />
      </Section>
      <Section title="By DAG">
        <DagTable nights={nights} />
      </Section>
      <Section
        title={chosenDay ? `Nights of ${chosenDay}` : "Nights"}
        aside={
          chosenDay ? (
            <Button size="xs" variant="outline" onClick={() => choose("day", null)}>
              All days
            </Button>
          ) : null
        }
      >
        <NightTable nights={shown.slice(0, 50)} />
        {shown.length > 50 ? <Sentence>The newest 50 of {shown.length}; a bar shows those of its day.</Sentence> : null}
      </Section>
    </>
  );
};

type FilterProps = { names: string[]; chosen: string | null; choose: (name: string | null) => void };

const Filter = ({ names, chosen, choose }: FilterProps) => (
  <select
    aria-label="Pool"
    value={chosen ?? ""}
    onChange={(event) => choose(event.target.value || null)}
    style={{ border: "1px solid var(--chakra-colors-border)", borderRadius: 4, padding: "2px 6px", background: "var(--chakra-colors-bg)" }}
  >
    <option value="">all pools</option>
    {names.map((name) => (
      <option key={name} value={name}>
        {name}
      </option>
    ))}
  </select>
);

const Head = ({ names }: { names: string[] }) => (
  <Table.Header>
    <Table.Row>
      {names.map((name, index) => (
        <Table.ColumnHeader key={name} textAlign={index ? "end" : "start"} w={index ? undefined : "30%"}>
          {name}
        </Table.ColumnHeader>
      ))}
    </Table.Row>
  </Table.Header>
);

const DagTable = ({ nights }: { nights: Night[] }) => {
  const isListed = areListed(currenciesOf(nights));
  const rows = byDag(isListed ? nights.map(withoutListed) : nights);
  return (
    <Wide>
      <Table.Root size="sm" variant="line" style={{ tableLayout: "fixed" }} aria-label="Totals of each DAG">
        <Head names={["DAG", "Nights", ...PHASES, cost(isListed), MORE]} />
        <Table.Body>
          {rows.map(({ dagId, total }) => (
            <DagRow key={dagId} dagId={dagId} total={total} />
          ))}
          {rows.length > 1 ? (
            <DagRow dagId={null} total={(isListed ? nights.map(withoutListed) : nights).reduce(add, noTotal())} />
          ) : null}
        </Table.Body>
      </Table.Root>
    </Wide>
  );
};

const withoutListed = (night: Night): Night =>
  night.usage ? { ...night, usage: { ...night.usage, currency: plain(night.usage.currency) } } : night;

/** For one DAG, or for all. */
const DagRow = ({ dagId, total }: { dagId: string | null; total: Total }) => (
  <Table.Row data-dag={dagId ?? undefined} data-all={dagId === null ? "" : undefined}>
    <Table.Cell overflowWrap="anywhere">{dagId === null ? "all" : <DagLink dagId={dagId} />}</Table.Cell>
    <Table.Cell textAlign="end">
      {total.runs.size}
      {total.redRuns.size ? <Badge colorPalette="red" ml={2}>{`${total.redRuns.size} red`}</Badge> : null}
    </Table.Cell>
    {PHASES.map((phase) => (
      <Table.Cell key={phase} textAlign="end">
        <Working
          time={total.nights > total.withoutBill ? duration(total.seconds[phase]) : "unknown"}
          computed={phase === "working" ? computedIn(total) : null}
        />
      </Table.Cell>
    ))}
    <Table.Cell textAlign="end">{costOf(total)}</Table.Cell>
    <Table.Cell textAlign="end">{extraOf(total)}</Table.Cell>
  </Table.Row>
);

/** The head of a column of money. */
const cost = (isListed: boolean) => `Cost${isListed ? LISTED : ""}`;

const NightTable = ({ nights }: { nights: Night[] }) => {
  const isListed = areListed(currenciesOf(nights));
  return (
    <Wide>
      <Table.Root size="sm" variant="line" style={{ tableLayout: "fixed" }} aria-label="Nights">
        <Head names={["Run", "Due", ...PHASES, cost(isListed), MORE]} />
        <Table.Body>
          {nights.map((night) => (
            <NightRow
              key={`${night.task.dag_id} ${night.task.dag_run_id} ${night.task.task_id} ${night.task.map_index}`}
              {...{ night, isListed }}
            />
          ))}
        </Table.Body>
      </Table.Root>
    </Wide>
  );
};

const currenciesOf = (nights: readonly Night[]) =>
  nights.flatMap(({ usage }) => (usage && usage.cost.total !== null ? [usage.currency] : []));

/** An automatic run's id repeats when it was due, which has a column of its own. */
const shortId = (runId: string) => runId.replace(/^(scheduled)__.*$/, "$1");

const NightRow = ({ night, isListed }: { night: Night; isListed: boolean }) => {
  const { task } = night;
  const usage = night.usage && isListed ? { ...night.usage, currency: plain(night.usage.currency) } : night.usage;
  const extra = usage ? extraCost(usage) : null;
  return (
    <>
    <Table.Row data-night={task.dag_run_id}>
      <Table.Cell overflowWrap="anywhere">
        <NodesLink dagId={task.dag_id} runId={task.dag_run_id}>
          {task.dag_id} {shortId(task.dag_run_id)}
        </NodesLink>{" "}
        {night.red ? <Badge colorPalette="red">{task.state === "failed" ? "scale-down failed" : "run failed"}</Badge> : null}
        <Text fontSize="xs" color="fg.muted">
          {night.pool?.name ?? "unknown pool"}
          {usage ? "" : `: its scale-down ${night.why}, so its node time is unknown`}
        </Text>
      </Table.Cell>
      <Table.Cell textAlign="end">{moment(beginOf(night))}</Table.Cell>
      {PHASES.map((phase) => (
        <Table.Cell key={phase} textAlign="end">
          <Working
            time={duration(usage ? usage.seconds[phase] : null)}
            computed={phase === "working" && usage ? usage.computed : null}
          />
        </Table.Cell>
      ))}
      <Table.Cell textAlign="end" title={usage?.at_least ?? undefined}>
        {usage?.at_least ? "at least " : ""}
        {usage ? money(usage.cost.total, usage.currency) : "unknown"}
      </Table.Cell>
      <Table.Cell textAlign="end">{usage === null || extra === null ? "unknown" : `+${money(extra, usage.currency)}`}</Table.Cell>
    </Table.Row>
    {night.failure ? (
      <Table.Row data-failed={task.dag_run_id}>
        <Table.Cell colSpan={4 + PHASES.length} pt={0}>
          <Failed failure={night.failure} />
        </Table.Cell>
      </Table.Row>
    ) : null}
    </>
  );
};
