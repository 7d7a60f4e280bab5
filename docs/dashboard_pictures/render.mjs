// Draws a dashboard with Grafana's UI packages from a live Prometheus, as docs/make_dashboard_pictures.py asks:
// node render.mjs DASHBOARD.json OUT.png URL END_S RANGE_S STEP_S [VARIABLE=REGEX...]
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';
import { build, preview } from 'vite';

const here = dirname(fileURLToPath(import.meta.url));
const [dashboard, picture, prometheus, end, range, step, ...choices] = process.argv.slice(2);
const input = {
  dashboard: JSON.parse(readFileSync(dashboard, 'utf8')),
  end: +end,
  range: +range,
  step: +step,
  chosen: Object.fromEntries(choices.map((choice) => choice.split(/=(.*)/s).slice(0, 2))),
};
writeFileSync(resolve(here, 'input.json'), JSON.stringify(input));
const settings = {
  root: here,
  logLevel: 'error',
  define: { 'process.env.NODE_ENV': '"production"', 'process.env': '{}' },
  build: { minify: false, chunkSizeWarningLimit: 1e6 },
  preview: {
    port: 0,
    host: '127.0.0.1',
    proxy: { '/prometheus': { target: prometheus, rewrite: (path) => path.replace(/^\/prometheus/, '') } },
  },
};
await build(settings);
const server = await preview(settings);
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });
// Tables draw only their visible rows, so the window is as high as any dashboard.
const page = await browser.newPage({ viewport: { width: 1600, height: 4000 } });
page.on('pageerror', (error) => console.log('page error:', error.message.slice(0, 300)));
await page.goto(`http://127.0.0.1:${server.httpServer.address().port}/`);
await page.waitForFunction(() => window.__report, { timeout: 120000 });
await page.waitForTimeout(2000);
await page.locator('#board').screenshot({ path: picture });
const failed = (await page.evaluate(() => window.__report)).filter((panel) => panel.error);
for (const panel of failed) console.log(`${panel.title}: ${panel.error}`);
await browser.close();
server.httpServer.close();
process.exit(failed.length ? 1 : 0);
