"""A PostgreSQL server for the tests of stores: one a test process."""

import pytest

from tests.service.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres_server():
  """A running server; a test that stops it starts it again."""
  server = PostgresServer()
  yield server
  server.remove()
