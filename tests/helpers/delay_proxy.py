"""Forwards TCP ports with a delay, as a long way to a machine has, and counts round trips.

    python delay_proxy.py ROUND_TRIP_S HOST:PORT ...

Prints its ports as JSON, and then [connections, round trips] of each for each line that it reads.
A round trip is counted when a machine answers what was sent to it: this is how often the caller
had to wait.
"""

import asyncio
import json
import sys
import time


class Forwarder:
    """One port."""

    def __init__(self, target, delay_s):
        host, _, port = target.rpartition(":")
        self._target, self._delay_s = (host, int(port)), delay_s
        self.connections = self.round_trips = 0

    async def accept(self, reader, writer):
        self.connections += 1
        try:
            await asyncio.sleep(2 * self._delay_s)  # the handshake of TCP
            there = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        asked = [False]
        await asyncio.gather(
            self._carry(reader, there[1], asked, True), self._carry(there[0], writer, asked, False)
        )

    async def _carry(self, reader, writer, asked, is_question):
        queue: asyncio.Queue = asyncio.Queue()
        sending = asyncio.create_task(self._send(queue, writer))
        while True:
            try:
                data = await reader.read(65536)
            except OSError:
                data = b""
            self.round_trips += asked[0] and not is_question
            asked[0] = is_question
            queue.put_nowait((time.monotonic() + self._delay_s, data))
            if not data:
                break
        await sending

    async def _send(self, queue, writer):
        while True:
            due_s, data = await queue.get()
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            try:
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()
            except OSError:
                return


async def main(round_trip_s, *targets):
    forwarders = [Forwarder(target, float(round_trip_s) / 2) for target in targets]
    servers = [await asyncio.start_server(each.accept, "127.0.0.1", 0) for each in forwarders]
    print(json.dumps([each.sockets[0].getsockname()[1] for each in servers]), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps([[each.connections, each.round_trips] for each in forwarders]), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
