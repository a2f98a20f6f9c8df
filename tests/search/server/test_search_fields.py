"""Every search option is declared once, and available to each client that it is declared for."""

from typing import Any

import click

from search.cli.query import command
from search.client.requests import fields_of
from search.ranking.options import SEARCH_OPTIONS, SearchOptions
from search.server.http.messages import SearchRequest
from search.server.mcp.tools import DocumentArguments

VALUES = {bool: True, int: 3, float: 0.7, str: "year"}


def test_an_option_is_taken_by_every_client_that_it_is_declared_for() -> None:
    for option in SEARCH_OPTIONS:
        value = option.choices[-1] if option.choices else VALUES[option.kind]
        fields: dict[str, Any] = {option.name: value} | ({"hybrid": True} if option.name == "hybrid_weight" else {})
        options = SearchOptions(**fields)
        (shown,) = (one for one in command.params if isinstance(one, click.Option) and one.name == option.name)
        assert (shown.opts, shown.help) == ([option.flag], option.help)
        if option.is_served:
            assert SearchRequest(query="whales", **fields).options == options
            assert fields_of(options) == {"k": options.k} | fields
        if option.is_served and option.for_agents:
            assert DocumentArguments(query="whales", **fields).options == options
        for model, is_there in (
            (SearchRequest, option.is_served),
            (DocumentArguments, option.is_served and option.for_agents),
        ):
            assert (option.name in model.model_fields) == is_there
