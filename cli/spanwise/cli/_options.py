"""Options and arguments that several commands share, so that one word means one thing everywhere."""

from typing import Annotated

import typer

_WHERE = "A condition, any number of times: name=answer, latency_ms>=200, 'feedback=concise<0.5', tags=a, …"

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", help="A file or a server's address; else SPANWISE_URL, else a server on 4318, else ./spanwise.db."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object per line, for pipes.")]
WhereOption = Annotated[list[str] | None, typer.Option("--where", "-w", metavar="CONDITION", help=_WHERE)]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

ParametersOption = Annotated[
    list[str] | None, typer.Option("--set", help="A parameter: name=value, the value as JSON or text.")
]

DatasetName = Annotated[str, typer.Argument(help="The dataset's name.")]
HostOption = Annotated[str, typer.Option(help="Address to bind to; beyond loopback an API key is needed.")]
FileStoreOption = Annotated[str, typer.Option("--store", help="The SQLite file to keep everything in.")]
