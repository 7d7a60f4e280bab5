// Draws the panels of a dashboard with Grafana's own components: time series, stat, bar gauge and table.
import React from 'react';
import { createRoot } from 'react-dom/client';
import {
  applyFieldOverrides, cacheFieldDisplayNames, createTheme, dateTime, FieldType, getFieldDisplayName,
  identityOverrideProcessor, reduceField, sortDataFrame, standardFieldConfigEditorRegistry, standardTransformers,
  standardTransformersRegistry, ThemeContext, toDataFrame,
  transformDataFrame,
} from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, TimeSeries } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { lastValueFrom } from 'rxjs';
import input from './input.json';

const { dashboard, end, range, step, chosen } = input as any;
const WIDTH = 1600, COLUMN = WIDTH / 24, ROW = 38;
const theme = createTheme({ colors: { mode: 'dark' } });
const to = Math.floor(end / step) * step, from = to - range;

const editor = (id: string) => ({
  id, path: id, name: id, description: '', editor: () => null, override: () => null,
  process: identityOverrideProcessor, shouldApply: () => true, settings: {},
});
const standard = ['unit', 'min', 'max', 'decimals', 'displayName', 'color', 'thresholds', 'mappings', 'noValue', 'links'];
const custom = [
  'drawStyle', 'lineWidth', 'lineStyle', 'fillOpacity', 'showPoints', 'spanNulls', 'stacking', 'axisSoftMax',
  'scaleDistribution', 'cellOptions', 'width', 'minWidth',
];
standardFieldConfigEditorRegistry.setInit(() => standard.map(editor) as any);
const registry: any = new (standardFieldConfigEditorRegistry as any).constructor(() => [
  ...standardFieldConfigEditorRegistry.list(),
  ...custom.map((name) => ({ ...editor('custom.' + name), path: name, isCustom: true })),
]);
standardTransformersRegistry.setInit(() =>
  ['mergeTransformer', 'filterFieldsByNameTransformer', 'organizeFieldsTransformer', 'groupingToMatrixTransformer']
    .map((name) => (standardTransformers as any)[name])
    .map((each) => ({ id: each.id, name: each.name, editor: () => null, transformation: async () => each }) as any)
);

const texts = Object.fromEntries(
  dashboard.templating.list.filter((v: any) => v.type === 'textbox').map((v: any) => [v.name, v.query])
);
const substitute = (expr: string) =>
  expr
    .replaceAll('$__rate_interval', `${Math.max(4 * step, 15)}s`)
    .replaceAll('$__range_s', `${range}`)
    .replaceAll('$__range', `${range}s`)
    .replace(/\$([a-z]\w*)/g, (_, name) => chosen[name] ?? texts[name] ?? '.*');

const ask = async (path: string) => {
  const answer = await (await fetch(`/prometheus/api/v1/${path}`)).json();
  if (answer.status !== 'success') throw new Error(answer.error);
  return answer.data.result;
};

async function frames(target: any, last: boolean, several: boolean): Promise<any[]> {
  const expr = encodeURIComponent(substitute(target.expr));
  const series = target.instant
    ? (await ask(`query?query=${expr}&time=${to}`)).map((s: any) => ({ ...s, values: [s.value] }))
    : await ask(`query_range?query=${expr}&start=${from}&end=${to}&step=${step}`);
  if (target.format === 'table') {
    const labels = [...new Set(series.flatMap((s: any) => Object.keys(s.metric)))] as string[];
    const value = several ? `Value #${target.refId}` : 'Value';
    return series.length === 0 && last ? [] : [toDataFrame({ refId: target.refId, fields: [
      { name: 'Time', type: FieldType.time, values: series.map(() => to * 1000) },
      ...labels.map((name) => ({ name, type: FieldType.string, values: series.map((s: any) => s.metric[name] ?? '') })),
      { name: value, type: FieldType.number, values: series.map((s: any) => +s.value[1]) },
    ] })];
  }
  return series.map((s: any) => {
    const name = target.legendFormat.replace(/\{\{(\w+)\}\}/g, (_: any, label: string) => s.metric[label] ?? '');
    // Grafana draws a gap where a step has no value.
    const found = new Map(s.values.map((v: any) => [Math.round(v[0]), +v[1]]));
    const times = target.instant ? [to] : Array.from({ length: range / step + 1 }, (_, i) => from + i * step);
    const values = target.instant ? [+s.values[0][1]] : times.map((t) => found.get(t) ?? null);
    return toDataFrame({ refId: target.refId, name, fields: [
      { name: 'Time', type: FieldType.time, values: times.map((t) => t * 1000) },
      { name: 'Value', type: FieldType.number, labels: s.metric, config: { displayNameFromDS: name }, values },
    ] });
  });
}

function Body({ panel, data, width, height }: any) {
  const config = structuredClone(panel.fieldConfig);
  const drawn = applyFieldOverrides({
    data, fieldConfig: config, fieldConfigRegistry: registry, theme, replaceVariables: (s: string) => s, timeZone: 'utc',
  } as any);
  const empty = (
    <div style={{ height, display: 'flex', alignItems: 'center', justifyContent: 'center', textAlign: 'center',
      color: theme.colors.text.secondary, font: '14px Inter, sans-serif', padding: 8 }}>{config.defaults.noValue}</div>
  );
  if (!drawn.length || drawn.every((frame) => frame.length === 0)) return empty;
  if (panel.type === 'timeseries') {
    const timeRange = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: `now-${range}s`, to: 'now' } };
    const { legend } = panel.options;
    return <TimeSeries frames={drawn as any} structureRev={1} width={width} height={height} timeRange={timeRange as any}
      timeZone="utc" legend={legend} />;
  }
  if (panel.type === 'table') {
    let [frame] = drawn as any[];
    // The table reads its titles and its order from this cache.
    for (const field of frame.fields) field.state = { ...field.state, displayName: undefined };
    cacheFieldDisplayNames([frame]);
    const [by] = panel.options.sortBy;
    const column = frame.fields.findIndex((field: any) => getFieldDisplayName(field) === by.displayName);
    if (column >= 0) frame = sortDataFrame(frame, column, by.desc);
    return <TableNG data={frame} width={width} height={height} cellHeight={'sm' as any}
      structureRev={1} fieldConfig={config} />;
  }
  const text = panel.options.reduceOptions.fields.replaceAll(/[/^$]/g, '');
  const of = (frame: any) => (text ? frame.fields.find((f: any) => f.name === text) : frame.fields[1]);
  const last = (field: any) => field.display(text ? field.values[field.values.length - 1] : reduceField({ field, reducers: ['lastNotNull'] }).lastNotNull);
  if (panel.type === 'stat') {
    const field = of(drawn[0]);
    const area = panel.options.graphMode === 'area' ? { y: field, x: drawn[0].fields[0] } : undefined;
    return <BigValue theme={theme} width={width} height={height} value={last(field)} sparkline={area as any}
      colorMode={panel.options.colorMode} graphMode={panel.options.graphMode} justifyMode={'auto' as any} />;
  }
  const each = Math.min(height / drawn.length, 40);
  const most = Math.max(...drawn.map((frame: any) => last(of(frame)).numeric), 1e-9);
  const longest = (all: string[]) => all.reduce((a, b) => (b.length > a.length ? b : a), '');
  const shown = drawn.map((frame: any) => last(of(frame)));
  const factors = { title: longest(drawn.map((frame: any) => frame.name)), text: longest(shown.map((v: any) => v.text + (v.suffix ?? ''))) };
  return (
    <div>
      {drawn.map((frame: any, i: number) => {
        const field = of(frame);
        return <BarGauge key={i} theme={theme} width={width} height={each - 4} display={field.display}
          alignmentFactors={factors} value={{ ...last(field), title: frame.name }} field={{ max: most, ...field.config }}
          orientation={'horizontal' as any} displayMode={panel.options.displayMode} />;
      })}
    </div>
  );
}

class Boundary extends React.Component<any, any> {
  state: any = {};
  static getDerivedStateFromError(error: any) { return { error }; }
  render() { return this.state.error ? <pre style={{ color: 'red' }}>{String(this.state.error.stack)}</pre> : this.props.children; }
}

async function draw(panel: any) {
  const targets = panel.targets;
  let data: any[] = [];
  for (const [i, target] of targets.entries()) data.push(...(await frames(target, i === targets.length - 1, targets.length > 1)));
  if (panel.transformations) {
    data = data.filter((frame) => frame.length > 0);
    data = await lastValueFrom(transformDataFrame(panel.transformations, data));
  }
  return data;
}

(async () => {
  const items: any[] = [], report: any[] = [];
  let bottom = 0;
  for (const panel of dashboard.panels) {
    const { x, y, w, h } = panel.gridPos;
    bottom = Math.max(bottom, (y + h) * ROW);
    const place = { position: 'absolute' as const, left: x * COLUMN + 4, top: y * ROW + 50 };
    if (panel.type === 'row') {
      items.push(<h4 key={panel.id} style={{ ...place, color: '#ccc', margin: '8px 4px' }}>⌄ {panel.title}</h4>);
      continue;
    }
    let data: any[] = [], error = '';
    try { data = await draw(panel); } catch (problem: any) { error = String(problem); }
    report.push({ title: panel.title, error });
    items.push(
      <div key={panel.id} style={place}>
        <PanelChrome width={w * COLUMN - 8} height={h * ROW - 8} title={panel.title} description={panel.description}>
          {(width: number, height: number) => (
            <Boundary>{error ? <pre style={{ color: 'red' }}>{error}</pre> : <Body {...{ panel, data, width, height }} />}</Boundary>
          )}
        </PanelChrome>
      </div>
    );
  }
  const bar = dashboard.templating.list
    .filter((v: any) => v.type !== 'datasource')
    .map((v: any) => `${v.label}: ${chosen[v.name] ?? texts[v.name] ?? 'All'}`);
  createRoot(document.getElementById('root')!).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div id="board" style={{ position: 'relative', height: bottom + 60, width: WIDTH }}>
        <div style={{ color: '#ccc', font: '15px Inter, sans-serif', padding: '14px 12px' }}>
          <b style={{ fontSize: 18 }}>{dashboard.title}</b>
          {bar.map((text: string) => <span key={text} style={{ marginLeft: 22 }}>{text}</span>)}
        </div>
        {items}
      </div>
    </ThemeContext.Provider>
  );
  (window as any).__report = report;
})();
