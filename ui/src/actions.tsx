// The buttons. Each is a call of Airflow's public API that its audit log has by itself; whether it is allowed is for
// Airflow to say, so they are always shown, and a refusal is told in words.

import { Box, Button, Dialog, Field, Input, Portal, Text } from "@chakra-ui/react";
import { type ReactNode, useState } from "react";

import { ApiError, inWords, patch, post, runPath, segment } from "./api.ts";
import { Notice } from "./words.tsx";

type Answer = { status: "error" | "success"; text: string };

function useCall(done: () => void) {
  const [busy, setBusy] = useState(false);
  const [answer, setAnswer] = useState<Answer | null>(null);
  const call = async (make: () => Promise<string>) => {
    setBusy(true);
    try {
      setAnswer({ status: "success", text: await make() });
      done();
    } catch (error) {
      setAnswer({ status: "error", text: inWords(error) });
    }
    setBusy(false);
  };
  const said = answer ? <Notice status={answer.status}>{answer.text}</Notice> : null;
  return { busy, call, said, refuse: (text: string) => setAnswer({ status: "error", text }) };
}

async function trigger(dagId: string, conf: Record<string, unknown>, operator: string) {
  try {
    return await post<{ dag_run_id: string }>(`dags/${segment(dagId)}/dagRuns`, { logical_date: null, conf });
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    throw new ApiError(404, `There is no DAG ${dagId} that you may run, and none with ${operator} has run yet: example_dags has one.`);
  }
}

/** `janitor` is the DAG that looked last; where none has, the one of this package's examples is tried. */
export const LookNow = ({ janitor, done }: { janitor: string | null; done: () => void }) => {
  const { busy, call, said } = useCall(done);
  const press = () =>
    void call(async () => {
      const run = await trigger(janitor ?? "janitor", {}, "GpuPoolStatusOperator");
      return `${janitor ?? "janitor"} was started as ${run.dag_run_id}: what it sees is shown within minutes.`;
    });
  return (
    <Box>
      <Button size="xs" variant="outline" loading={busy} onClick={press}>
        Look now
      </Button>
      {said}
    </Box>
  );
};

type Of = { dagId: string; runId: string };

/** `pods` are those that the pool's nodes run; `alone` says that all of them are this run's. */
type ZeroNowProps = { run: Of; pods: readonly string[]; alone: boolean; done: () => void };

export const ZeroNow = ({ run, pods, alone, done }: ZeroNowProps) => {
  const { busy, call, said } = useCall(done);
  const confirm = () =>
    call(async () => {
      await patch(runPath(run.dagId, run.runId), { state: "failed" });
      return "The run was marked as failed: its tasks are stopped, its pods deleted, and its machines released.";
    });
  const what = pods.length ? `and ends ${alone ? "" : "its own of "}${pods.join(", ")}` : "and ends its pods, if it has any";
  return (
    <Confirm name="Zero now" title="Stop this run?" verb="Mark as failed" busy={busy} confirm={confirm} said={said}>
      <Text overflowWrap="anywhere">
        It marks the run {run.runId} of {run.dagId} as failed {what}. Machines that no other run wants are released.
      </Text>
    </Confirm>
  );
};

type MoreTimeProps = { pool: string; run: Of; extender: string | null; done: () => void };

export const MoreTime = ({ pool, run, extender, done }: MoreTimeProps) => {
  const { busy, call, said, refuse } = useCall(done);
  const [hours, setHours] = useState("1");
  const [reason, setReason] = useState("");
  const confirm = () => {
    if (!(Number(hours) > 0)) return refuse("Hours is a number above 0.");
    return void call(async () => {
      const conf = { pool, dag_id: run.dagId, run_id: run.runId, hours: Number(hours), reason };
      const dagId = extender ?? "extend_run";
      const started = await trigger(dagId, conf, "ExtendGpuPoolOperator");
      return `${dagId} was started as ${started.dag_run_id}: its log says until when the nodes are wanted then.`;
    });
  };
  return (
    <Confirm name="More time" title="Keep the nodes longer?" verb="Ask" busy={busy} confirm={confirm} said={said}>
      <Text overflowWrap="anywhere" mb={3}>
        The nodes of {pool} stay longer for the run {run.runId} of {run.dagId}. Beyond the pool&apos;s max_runtime it takes a
        reason. A pod that runs already keeps its own deadline.
      </Text>
      <Field.Root mb={2}>
        <Field.Label>Hours more</Field.Label>
        <Input size="sm" value={hours} inputMode="decimal" onChange={(event) => setHours(event.target.value)} />
      </Field.Root>
      <Field.Root>
        <Field.Label>Reason</Field.Label>
        <Input size="sm" value={reason} onChange={(event) => setReason(event.target.value)} />
      </Field.Root>
    </Confirm>
  );
};

type ConfirmProps = {
  name: string;
  title: string;
  verb: string;
  busy: boolean;
  confirm: () => void;
  said: ReactNode;
  children: ReactNode;
};

const Confirm = ({ name, title, verb, busy, confirm, said, children }: ConfirmProps) => (
  <Dialog.Root>
    <Dialog.Trigger asChild>
      <Button size="xs" variant="outline">
        {name}
      </Button>
    </Dialog.Trigger>
    <Portal>
      <Dialog.Backdrop />
      <Dialog.Positioner>
        <Dialog.Content>
          <Dialog.Header>
            <Dialog.Title>{title}</Dialog.Title>
          </Dialog.Header>
          <Dialog.Body>
            {children}
            {said}
          </Dialog.Body>
          <Dialog.Footer>
            <Dialog.ActionTrigger asChild>
              <Button size="sm" variant="outline">
                Close
              </Button>
            </Dialog.ActionTrigger>
            <Button size="sm" colorPalette="red" loading={busy} onClick={confirm}>
              {verb}
            </Button>
          </Dialog.Footer>
        </Dialog.Content>
      </Dialog.Positioner>
    </Portal>
  </Dialog.Root>
);
