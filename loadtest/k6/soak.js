// A moderate rate for hours: watch memory, descriptors and restarts on the dashboard meanwhile. Half of RATE for DURATION.
import { base, rate, request, setting, thresholds } from './common.js';

/** @type {import('k6/options').Options} */
export const options = {
  ...base,
  // Connections as browsers make them: each iteration brings its own.
  noVUConnectionReuse: true,
  thresholds,
  scenarios: {
    soak: {
      executor: 'constant-arrival-rate',
      rate: Math.ceil(rate / 2),
      timeUnit: '1s',
      duration: setting('DURATION', '4h'),
      preAllocatedVUs: Math.ceil(rate / 4),
      maxVUs: rate * 2,
    },
  },
};

export default request;
