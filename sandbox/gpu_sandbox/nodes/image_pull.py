"""Having a container's image on its node: pulls that succeed, take long, fail and back off."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpu_sandbox.nodes import images
from gpu_sandbox.nodes.restarts import BackOff
from gpu_sandbox.nodes.spec import Image

if TYPE_CHECKING:
    from gpu_sandbox.nodes.container import ContainerRunner

LOCAL_RETRY_SECONDS = 5.0
PULL_ERROR_SHOWN_SECONDS = 1.0


async def have_image(runner: ContainerRunner) -> Image | None:
    """Have the image on the node, however long that takes; None when the container is stopped meanwhile."""
    reference = runner.container["image"]
    policy = images.pull_policy(runner.container.get("imagePullPolicy"), reference)
    back_off = BackOff()
    back_off.after_end(time.monotonic())
    while not runner.stopping:
        image = images.find(reference, runner.home.machine.images)
        if problem := images.invalid(reference):
            await _not_a_name(runner, problem)
        elif image is None and policy == "Never":
            await _never_pulled(runner, reference)
        elif image is None:
            await _fail(runner, reference, back_off)
        elif await _pull(runner, image, reference, policy):
            return image
    return None


async def _pull(runner: ContainerRunner, image: Image, reference: str, policy: str) -> bool:
    pulled, name = runner.home.node.pulled_images, images.familiar(reference)
    # What is known here counts as loaded onto the node by hand for one that must not pull it.
    if policy == "Never" or (name in pulled and policy == "IfNotPresent"):
        text = f'Container image "{reference}" already present on machine and can be accessed by the pod'
        runner.say("Normal", "Pulled", text)
        return True
    runner.say("Normal", "Pulling", f'Pulling image "{reference}"')
    seconds = 0.0 if name in pulled else await _take(runner, image, name)
    if runner.stopping:
        return False
    pulled.add(name)
    took = _go_seconds(seconds)
    runner.say(
        "Normal",
        "Pulled",
        f'Successfully pulled image "{reference}" in {took} ({took} including waiting).'
        f" Image size: {image.size} bytes.",
    )
    return True


async def _take(runner: ContainerRunner, image: Image, name: str) -> float:
    """Wait as long as the first pull on the node takes; return the seconds."""
    node = runner.home.node
    if image.size and not image.pull_seconds and node.spec.image_bytes_per_second:
        return await node.transfers.take(name, image.size, runner.stop_asked)
    began = time.monotonic()
    if image.pull_seconds:
        await runner.pause(image.pull_seconds)
    return time.monotonic() - began


async def _not_a_name(runner: ContainerRunner, problem: str) -> None:
    runner.say("Warning", "InspectFailed", problem)
    runner.say("Warning", "Failed", "Error: InvalidImageName")
    runner.wait_state("InvalidImageName", problem)
    await runner.pause(LOCAL_RETRY_SECONDS)


async def _never_pulled(runner: ContainerRunner, reference: str) -> None:
    text = f'Container image "{reference}" is not present with pull policy of Never'
    runner.say("Warning", "ErrImageNeverPull", text)
    runner.say("Warning", "Failed", "Error: ErrImageNeverPull")
    runner.wait_state("ErrImageNeverPull", text)
    await runner.pause(LOCAL_RETRY_SECONDS)


async def _fail(runner: ContainerRunner, reference: str, back_off: BackOff) -> None:
    reason = images.not_found(reference)
    runner.say("Normal", "Pulling", f'Pulling image "{reference}"')
    runner.say("Warning", "Failed", f'Failed to pull image "{reference}": {reason}')
    runner.say("Warning", "Failed", "Error: ErrImagePull")
    runner.wait_state("ErrImagePull", reason)
    await runner.pause(PULL_ERROR_SHOWN_SECONDS)
    if runner.stopping:
        return
    text = f'Back-off pulling image "{reference}"'
    runner.say("Normal", "BackOff", text)
    runner.say("Warning", "Failed", "Error: ImagePullBackOff")
    runner.wait_state("ImagePullBackOff", f"{text}: ErrImagePull: {reason}")
    await runner.pause(back_off.after_end(time.monotonic()) - PULL_ERROR_SHOWN_SECONDS)


def _go_seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms" if seconds < 1 else f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
