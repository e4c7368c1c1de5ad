#!/usr/bin/env python3
"""load.py HOST ADDRESS PORT STOP: sends GET / until the file STOP exists, over four kept connections and over new ones, and prints
what came back as JSON: {"sent", "failed": [..], "pods": [..]}. A kept connection that the server closed between two requests is
opened anew, as every client does: that is no failure. Everything else that is not 200 is one.
"""
import collections, http.client, json, os, sys, threading, time

host, address, port, stop = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
lock, sent, failed, pods = threading.Lock(), 0, collections.Counter(), set()


def ask(connection):
    connection.request("GET", "/", headers={"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(errors="replace"), answer.will_close


def client(kept):
    global sent
    connection = None
    while not os.path.exists(stop):
        reused, begin = connection is not None, time.time()
        try:
            connection = connection or http.client.HTTPConnection(address, port, timeout=10)
            try:
                status, body, closes = ask(connection)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                if not reused:
                    raise
                connection.close()
                connection = http.client.HTTPConnection(address, port, timeout=10)
                status, body, closes = ask(connection)
            outcome = None if status == 200 else f"status {status}"
        except Exception as error:
            when = time.strftime("%H:%M:%S", time.gmtime(begin))
            outcome, body, closes = f"{error!r}, asked at {when}, after {time.time() - begin:.1f} s", "", True
        with lock:
            sent += 1
            if outcome:
                failed[outcome] += 1
            elif body.startswith("pod "):
                pods.add(body.split()[1])
        if closes or not kept:
            connection.close()
            connection = None
        time.sleep(0.02)


threads = [threading.Thread(target=client, args=(kept,), daemon=True) for kept in (True, True, True, True, False, False)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({"sent": sent, "failed": dict(failed), "pods": sorted(pods)}))
