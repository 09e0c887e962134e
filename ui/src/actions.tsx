// The buttons. Each calls Airflow's public API, which records it in the audit log. Airflow decides whether it is
// allowed, so what a user may not do is shown too, and a refusal is shown as a message.

import { Box, Button, Dialog, Field, Input, Portal, Text } from "@chakra-ui/react";
import { type FormEvent, type ReactNode, useState } from "react";

import { ApiError, get, inWords, patch, post, runPath, segment } from "./api.ts";
import { money } from "./format.ts";
import { Notice } from "./words.tsx";

type Answer = { status: "error" | "success"; text: string };

/** `done` is called when the call has succeeded. */
function useCall(done?: () => void) {
  const [busy, setBusy] = useState(false);
  const [answer, setAnswer] = useState<Answer | null>(null);
  const call = async (make: () => Promise<string>) => {
    setBusy(true);
    try {
      setAnswer({ status: "success", text: await make() });
      done?.();
    } catch (error) {
      setAnswer({ status: "error", text: inWords(error) });
    }
    setBusy(false);
  };
  const said = answer ? <Notice status={answer.status}>{answer.text}</Notice> : null;
  return { busy, call, said, refuse: (text: string) => setAnswer({ status: "error", text }), forget: () => setAnswer(null) };
}

type RunState = { dag_run_id: string; state: string };

/** Why a DAG's run would not start now, as text; empty if nothing is known to prevent it. */
async function waits(dagId: string): Promise<string> {
  const dag = await get<{ is_paused: boolean }>(`dags/${segment(dagId)}`);
  return dag.is_paused ? ` The DAG ${dagId} is paused: it runs once it is unpaused.` : "";
}

async function trigger(dagId: string, conf: Record<string, unknown>) {
  try {
    return await post<{ dag_run_id: string }>(`dags/${segment(dagId)}/dagRuns`, { logical_date: null, conf });
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    throw new ApiError(404, `There is no DAG ${dagId} that you may run.`);
  }
}

type LookNowProps = { janitor: string; pool: string; done: () => void };

/** `janitor` is the DAG that checked this pool last. */
export const LookNow = ({ janitor, pool, done }: LookNowProps) => {
  const { busy, call, said } = useCall(done);
  const press = () =>
    void call(async () => {
      const going = await looksOf(janitor);
      if (going) return `A check is already running: ${janitor}, ${going.dag_run_id}.${await waits(janitor)}`;
      const run = await trigger(janitor, {});
      return `${janitor} was started as ${run.dag_run_id}: what it sees is shown within minutes.${await waits(janitor)}`;
    });
  return (
    <Box>
      <Button size="xs" variant="outline" loading={busy} onClick={press} aria-label={`Look now at ${pool}`}>
        Look now
      </Button>
      {said}
    </Box>
  );
};

/** The check in progress; none if there is none, or the DAG may not be read. */
async function looksOf(dagId: string): Promise<RunState | undefined> {
  try {
    const query = { state: ["queued", "running"], limit: 1 };
    return (await get<{ dag_runs: RunState[] }>(`dags/${segment(dagId)}/dagRuns`, query)).dag_runs[0];
  } catch (error) {
    if (error instanceof ApiError) return undefined;
    throw error;
  }
}

type Of = { dagId: string; runId: string };

/** `pods` are the pods on the pool's nodes; `alone`: all of them belong to this run. */
type ZeroNowProps = { run: Of; pods: readonly string[]; alone: boolean; done: () => void };

export const ZeroNow = ({ run, pods, alone, done }: ZeroNowProps) => {
  const { busy, call, said, forget } = useCall();
  const confirm = () =>
    call(async () => {
      await patch(runPath(run.dagId, run.runId), { state: "failed" });
      return "The run was marked as failed: its tasks are stopped, its pods deleted, and its machines released.";
    });
  const what = pods.length ? `and ends ${alone ? "" : "its own of "}${pods.join(", ")}` : "and ends its pods, if it has any";
  return (
    <Confirm {...{ busy, confirm, said, forget, done }} name="Zero now" of={run.runId} title="Stop this run?" verb="Mark as failed">
      <Text overflowWrap="anywhere">
        It marks the run {run.runId} of {run.dagId} as failed {what}. Machines that no other run wants are released.
      </Text>
    </Confirm>
  );
};

/** `extender` is a DAG that has this pool; whose runs it extends, and by how much, is its own matter. */
type MoreProps = { pool: string; run: Of; extender: string; done: () => void };

export const MoreTime = (props: MoreProps) => (
  <More
    {...props}
    name="More time"
    title="Keep the nodes longer?"
    label="Hours more"
    first="1"
    refusal="Hours is a number above 0."
    confOf={(typed) => (amountOf(typed) === null ? null : { hours: amountOf(typed) })}
  >
    The nodes of {props.pool} stay longer for the run {props.run.runId} of {props.run.dagId}. Beyond the pool&apos;s max_runtime
    it takes a reason. A pod that runs already keeps its own deadline.
  </More>
);

/** `most` is what it may cost now. */
export const MoreMoney = ({ most, currency, ...props }: MoreProps & { most: number; currency: string }) => (
  <More
    {...props}
    name="More money"
    title="Let it cost more?"
    label={`In all, ${currency}`}
    first=""
    refusal={`It may cost ${money(most, currency)} now: give more than that, for all of its tries.`}
    confOf={(typed) => ((amountOf(typed) ?? 0) > most ? { hours: null, max_cost: amountOf(typed) } : null)}
  >
    The run {props.run.runId} of {props.run.dagId} may cost more on {props.pool}, each of its blocks, and within the pool&apos;s
    max_runtime. It takes a reason. A pod that runs already keeps its own deadline.
  </More>
);

type MoreOf = MoreProps & {
  name: string;
  title: string;
  label: string;
  first: string;
  refusal: string;
  confOf: (typed: string) => Record<string, number | null> | null;
  children: ReactNode;
};

/** `confOf` makes the configuration of what is typed; null if it is not acceptable, which `refusal` says. */
const More = ({ pool, run, extender, done, name, title, label, first, refusal, confOf, children }: MoreOf) => {
  const { busy, call, said, refuse, forget } = useCall();
  const [typed, setTyped] = useState(first);
  const [reason, setReason] = useState("");
  const confirm = () => {
    const asked = confOf(typed);
    if (asked === null) return refuse(refusal);
    return void call(async () => {
      const conf = { pool, dag_id: run.dagId, run_id: run.runId, ...asked, reason };
      const started = await trigger(extender, conf);
      const paused = await waits(extender);
      return paused ? `${extender} was started as ${started.dag_run_id}.${paused}` : outcome(extender, started.dag_run_id);
    });
  };
  return (
    <Confirm {...{ busy, confirm, said, forget, done, name, title }} of={run.runId} verb="Ask">
      <Text overflowWrap="anywhere" mb={3}>
        {children} It is asked of the DAG {extender}.
      </Text>
      <Field.Root mb={2}>
        <Field.Label>{label}</Field.Label>
        <Input size="sm" value={typed} inputMode="decimal" onChange={(event) => setTyped(event.target.value)} />
      </Field.Root>
      <Field.Root>
        <Field.Label>Reason</Field.Label>
        <Input size="sm" value={reason} onChange={(event) => setReason(event.target.value)} />
      </Field.Root>
    </Confirm>
  );
};

const LOOKS = 12;
const LOOK_AGAIN = 5_000;

/** A number above 0 as typed; null if it is none. */
export function amountOf(typed: string): number | null {
  const amount = /^\s*\d+([.,]\d+)?\s*$/.test(typed) ? Number(typed.replace(",", ".")) : NaN;
  return amount > 0 ? amount : null;
}

/** The outcome of the run that gives more time or money, waited for up to a minute. */
async function outcome(dagId: string, runId: string): Promise<string> {
  for (let look = 0; look < LOOKS; look++) {
    const { state } = await get<RunState>(runPath(dagId, runId));
    if (state === "success") return `Done: the log of ${dagId}, ${runId}, has the new end of the demand.`;
    if (state === "failed") throw new ApiError(409, `The demand was not extended: see the log of ${dagId}, ${runId}.`);
    await new Promise((resolve) => window.setTimeout(resolve, LOOK_AGAIN));
  }
  return `${dagId} was started as ${runId}, and has not ended yet: its log will have the new end of the demand.`;
}

type ConfirmProps = {
  name: string;
  of: string;
  title: string;
  verb: string;
  busy: boolean;
  confirm: () => void;
  said: ReactNode;
  forget: () => void;
  done: () => void;
  children: ReactNode;
};

/** A button and its dialog: opening it clears its last message, and closing it reloads the page's data. */
const Confirm = ({ name, of, title, verb, busy, confirm, said, forget, done, children }: ConfirmProps) => (
  <Dialog.Root onOpenChange={({ open }) => (open ? forget() : done())}>
    <Dialog.Trigger asChild>
      <Button size="xs" variant="outline" aria-label={`${name}: ${of}`}>
        {name}
      </Button>
    </Dialog.Trigger>
    <Portal>
      <Dialog.Backdrop />
      <Dialog.Positioner>
        <Dialog.Content as="form" onSubmit={(event: FormEvent) => (event.preventDefault(), confirm())}>
          <Dialog.Header>
            <Dialog.Title>{title}</Dialog.Title>
          </Dialog.Header>
          <Dialog.Body>
            {children}
            {said}
          </Dialog.Body>
          <Dialog.Footer>
            <Dialog.ActionTrigger asChild>
              <Button size="sm" variant="outline" type="button">
                Close
              </Button>
            </Dialog.ActionTrigger>
            <Button size="sm" colorPalette="red" loading={busy} type="submit">
              {verb}
            </Button>
          </Dialog.Footer>
        </Dialog.Content>
      </Dialog.Positioner>
    </Portal>
  </Dialog.Root>
);
