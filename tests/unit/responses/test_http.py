"""The HTTP client against a peer that sends what it likes."""

from __future__ import annotations

import asyncio

import pytest

from eyrie.responses.http import Client, Gone, TimedOut

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def exchange(answers, requests=1, timeout=2.0, pause=0.0, close=False):
    """Ask `requests` times; the peer sends answers[n] (a list of parts) to the n-th. (replies, connections)."""

    async def go():
        seen = {"connections": 0, "requests": 0}

        async def serve(reader, writer):
            seen["connections"] += 1
            try:
                while True:
                    await reader.readuntil(b"\r\n\r\n")
                    number = seen["requests"]
                    seen["requests"] += 1
                    for part in answers[min(number, len(answers) - 1)]:
                        writer.write(part)
                        await writer.drain()
                        await asyncio.sleep(pause)
                    if close:
                        writer.close()
                        return
            except (asyncio.IncompleteReadError, ConnectionError):
                pass

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        replies = []
        for _ in range(requests):
            try:
                replies.append(await client.get("/x", timeout))
            except (Gone, TimedOut) as error:
                replies.append(error)
        client.close()
        server.close()
        return replies, seen["connections"]

    return asyncio.run(go())


def test_connection_is_kept_and_used_again():
    replies, connections = exchange([[OK]], requests=5)
    assert [(reply.status, reply.body) for reply in replies] == [(200, b"ok")] * 5
    assert connections == 1


def test_answer_in_pieces_and_in_chunks_is_put_together():
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [head[:10], head[10:], b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"]
    replies, _ = exchange([chunks, [OK]], requests=2, pause=0.01)
    assert [reply.body for reply in replies] == [b"abcde", b"ok"]


def test_connection_that_the_peer_ends_is_replaced():
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
    replies, connections = exchange([[closing]], requests=3, close=True)
    assert [reply.body for reply in replies] == [b"ok"] * 3
    assert connections == 3


def test_headers_are_lower_case_and_status_is_kept():
    replies, _ = exchange([[b"HTTP/1.1 429 Too Many\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"]])
    assert (replies[0].status, replies[0].headers["retry-after"], replies[0].body) == (429, "3", b"")


@pytest.mark.parametrize("data", [b"hello\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\0" * 100 + b"\r\n\r\n"])
def test_what_is_no_http_is_a_broken_connection(data):
    replies, _ = exchange([[data], [OK]], requests=2)
    assert isinstance(replies[0], Gone)
    assert replies[1].body == b"ok"


def test_torn_answer_is_a_broken_connection():
    replies, _ = exchange([[b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nonly this"]], close=True)
    assert isinstance(replies[0], Gone)


def test_deadline_counts_from_the_call_and_closes_the_connection():
    part = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nx"
    replies, connections = exchange([[part], [OK]], requests=2, timeout=0.2, pause=0.5)
    assert isinstance(replies[0], TimedOut)
    assert connections == 2


def test_nobody_listening_is_gone():
    async def go():
        with pytest.raises(Gone):
            await Client("http://127.0.0.1:9").get("/")

    asyncio.run(go())


@pytest.mark.parametrize("url", ["ftp://x", "nonsense", "http://"])
def test_other_addresses_are_refused(url):
    async def go():
        with pytest.raises(ValueError, match="URL"):
            Client(url)

    asyncio.run(go())
