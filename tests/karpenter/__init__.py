"""Pools whose nodes the real Karpenter brings, keeps and takes away: a tier of its own, in `make nightly`.

What runs is the released Karpenter (sigs.k8s.io/karpenter, docs/compatibility.md) with all of its controllers, against
the sandbox's API server and scheduler. Its cloud is `gpu_sandbox.karpenter`: EC2's instance types with GPUs, launches
that it refuses in a test's words, and machines that join as nodes of the sandbox. Not there: AWS's own provider with
its node classes, spot interruptions and images; EKS Auto Mode.

tests/sandbox/provisioner.py stands in for it in the quick tests. What the real one does otherwise, and is held here:

- A claim is made before its machine, and lives on while its launch is refused: only InsufficientCapacityError and
  NodeClassNotReady delete it, the latter without an event. A launch is tried for five minutes, a machine that does not
  join is waited for fifteen (pkg/controllers/nodeclaim/lifecycle/liveness.go); nobody waits so long here.
- A NodePool's Ready condition comes from Karpenter's controllers. One that nobody has looked at, one that is being
  deleted and a static one are ignored, without a word to any pod.
- It refuses pods by kubernetes.io/hostname, by labels that no NodePool names, and over a NodePool's limits; the pod's
  FailedScheduling says so, once in some minutes for the same words.
- It looks for nodes to remove every ten seconds, and leaves one alone for ten seconds at least after it has nominated
  it for a pod; then come the taint, the drain and the machine's end. So a node goes half a minute to a minute after its
  last pod, at the quickest. One that was never initialized, for want of a device plugin, never goes.
- `karpenter.sh/do-not-disrupt` holds in drift and consolidation, unless the NodePool has a terminationGracePeriod;
  a duration as its value ("1s") is new in 1.14, and ends the protection after that time.
- A node's `karpenter.sh/unregistered:NoExecute` goes when it is registered. In that moment a pod may be ended by
  DeletionByTaintManager, a case in many; a run with on_preemption="resume" goes on.
"""
