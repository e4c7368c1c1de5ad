// Many open tunnels with a message a second each, echoed by the application at WS_PATH. TUNNELS at once for DURATION.
import { check } from 'k6';
import { Counter, Trend } from 'k6/metrics';
import { clearInterval, setInterval, setTimeout } from 'k6/timers';
import { WebSocket } from 'k6/websockets';
import { base, setting, target } from './common.js';

const url = target.replace(/^http/, 'ws') + setting('WS_PATH', '/ws');
const hold = Number(setting('HOLD', '60')) * 1000;
const lost = new Counter('messages_lost');
const roundTrip = new Trend('message_round_trip', true);

/** @type {import('k6/options').Options} */
export const options = {
  hosts: base.hosts,
  insecureSkipTLSVerify: base.insecureSkipTLSVerify,
  thresholds: {
    checks: ['rate>0.999'],
    messages_lost: ['count<1'],
    message_round_trip: [`p(95)<${setting('P95', '500')}`],
  },
  scenarios: {
    tunnels: {
      executor: 'constant-vus',
      vus: Number(setting('TUNNELS', '500')),
      duration: setting('DURATION', '2m'),
      gracefulStop: '90s',
    },
  },
};

export default function () {
  const socket = new WebSocket(url);
  let sent = 0;
  let echoed = 0;
  let opened = false;
  socket.onopen = () => {
    opened = true;
    const beat = setInterval(() => {
      sent += 1;
      socket.send(String(Date.now()));
    }, 1000);
    setTimeout(() => {
      clearInterval(beat);
      // The last message has a second to come back.
      setTimeout(() => socket.close(), 1000);
    }, hold);
  };
  socket.onmessage = (message) => {
    echoed += 1;
    roundTrip.add(Date.now() - Number(message?.data));
  };
  socket.onclose = () => {
    check(opened, { 'tunnel was opened': (yes) => yes });
    if (echoed < sent) {
      lost.add(sent - echoed);
    }
  };
}
