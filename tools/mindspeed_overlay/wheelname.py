"""How a patched wheel is named, and where its build record lies."""

from mindspeed_overlay.plan import Plan

BUILD_JSON = "mindspeed/build.json"


def local_version(plan: Plan, digest: str) -> str:
    """`<release>+mindspeed.<N>.g<12 hex>`: newer sets sort higher, the hex names the build."""
    return f"{plan.release.version}+mindspeed.{plan.revision}.g{digest[:12]}"


def wheel_name(plan: Plan, digest: str, tags: tuple[str, ...]) -> str:
    """The file name, with the compressed tag set of `tags`."""
    parts = [tag.split("-") for tag in tags]
    joined = (".".join(dict.fromkeys(part[i] for part in parts)) for i in range(3))
    return f"megatron_core-{local_version(plan, digest)}-{'-'.join(joined)}.whl"
