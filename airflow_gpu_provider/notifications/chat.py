"""Text for a chat, in which nothing that somebody else wrote is a mention, a link or markup. Pure."""

from __future__ import annotations

from airflow_gpu_provider.untrusted import plain

_SPLIT = "\u200b"  # ZERO WIDTH SPACE: no chat takes a mention or a link that it is in
_DEFUSED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": f"@{_SPLIT}", "`": "'"})


def for_chat(text: str) -> str:
    """Return a text as a chat, or a mail in HTML, shows it: as it was written.

    Slack takes `<!channel>`, `<@U1>` and `<url|text>` for what they are to it, and asks for entities in place of `&`,
    `<` and `>` (docs.slack.dev, "Formatting message text"), which HTML has too. `@everyone` mentions in Discord, and
    `[text](url)` links in Discord and Teams, without any of these: a zero-width space is in them. Backticks, which
    begin code that the rest of a message would be in, are quotation marks. Addresses are links in each chat, and show
    where they lead to.
    """
    return plain(text, len(text)).translate(_DEFUSED).replace("](", f"]{_SPLIT}(").replace("][", f"]{_SPLIT}[")
