// A dashboard's JSON with the answers of Prometheus, drawn by Grafana's own components (@grafana/ui). What a server of
// Grafana adds as plug-ins, the rows of states and the heat map, is drawn here.
import { createTheme, dateTime, FieldType, getDisplayProcessor, getFieldDisplayName, toDataFrame } from '@grafana/data';
import { BigValue, BigValueGraphMode, BigValueTextMode, PanelChrome, ThemeContext, TimeSeries } from '@grafana/ui';
import React from 'react';
import { createRoot } from 'react-dom/client';

const { dashboard, answers, from, to, width } = window.PICTURE;
const theme = createTheme({ colors: { mode: 'light' } });
const timeRange = { from: dateTime(from), to: dateTime(to), raw: { from: dateTime(from), to: dateTime(to) } };
const ROW = 38;

const legend = (target, labels) =>
  (target.legendFormat || '').replace(/{{\s*(\w+)\s*}}/g, (_, label) => labels[label] ?? '');

function frames(panel, found) {
  const { defaults } = panel.fieldConfig;
  const series = panel.targets.flatMap((target, at) => found[at].map((one) => ({ target, one })));
  return series.map(({ target, one }, seriesIndex) => {
    const points = one.values ?? [one.value];
    const name = legend(target, one.metric);
    const config = { color: { mode: 'palette-classic' }, ...defaults, displayName: name };
    const values = points.map(([, value]) => (value === 'NaN' ? null : Number(value)));
    const frame = toDataFrame({
      name,
      fields: [
        { name: 'Time', type: FieldType.time, values: points.map(([time]) => time * 1000), config: {} },
        { name: 'Value', type: FieldType.number, values, config },
      ],
    });
    const field = frame.fields[1];
    field.state = { seriesIndex, displayName: name };
    field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
    return frame;
  });
}

function Stat({ panel, found, width, height }) {
  const [frame] = frames(panel, found);
  const field = frame?.fields[1];
  const value = field ? field.display(field.values[field.values.length - 1]) : { text: '–', numeric: NaN };
  const textMode = panel.options.textMode === 'name' ? BigValueTextMode.Name : BigValueTextMode.Value;
  const shown = { ...value, title: field ? getFieldDisplayName(field, frame) : '' };
  return (
    <BigValue
      theme={theme} width={width} height={height} colorMode={panel.options.colorMode} textMode={textMode}
      graphMode={BigValueGraphMode.None} value={shown}
    />
  );
}

const Lines = ({ panel, found, width, height }) => (
  <TimeSeries
    frames={frames(panel, found)} structureRev={1} timeRange={timeRange} timeZone="utc" width={width} height={height}
    legend={panel.options.legend} options={panel.options}
  />
);

const words = ({ text, suffix }) => `${text}${suffix ?? ''}`;

const Cells = ({ name, colours, height }) => (
  <div style={{ display: 'flex', height, alignItems: 'center' }}>
    <span style={{ width: 96, paddingRight: 8, textAlign: 'right', fontSize: 11 }}>{name}</span>
    {colours.map((background, at) => <span key={at} style={{ flex: 1, height: '100%', background }} />)}
  </div>
);

function States({ panel, found }) {
  const colour = theme.visualization.getColorByName('green');
  const rows = frames(panel, found).map((frame) => frame.fields[1]);
  const held = rows.filter(({ values }) => values.some(Boolean));
  return held.map(({ config, values }) => (
    <Cells
      key={config.displayName} name={config.displayName} height={32}
      colours={values.map((value) => (value ? colour : 'transparent'))}
    />
  ));
}

function Heat({ panel, found, height }) {
  const bound = ({ metric }) => Number(metric.le.replace('+Inf', 'Infinity'));
  const series = [...found[0]].sort((one, other) => bound(other) - bound(one));
  const below = series.map(({ values }) => values.map(([, value]) => Number(value)));
  const own = below.map((row, at) => row.map((value, time) => Math.max(value - (below[at + 1]?.[time] ?? 0), 0)));
  const most = Math.max(...own.flat(), 1e-9);
  const display = getDisplayProcessor({ field: { type: FieldType.number, config: { unit: 's' } }, theme });
  const name = (one) => (Number.isFinite(bound(one)) ? `≤ ${words(display(bound(one)))}` : 'more');
  return series.map((one, at) => (
    <Cells
      key={one.metric.le} name={name(one)} height={height / series.length}
      colours={own[at].map((value) => (value ? `rgba(31, 96, 196, ${0.15 + (0.85 * value) / most})` : 'transparent'))}
    />
  ));
}

const KINDS = { stat: Stat, timeseries: Lines, 'state-timeline': States, heatmap: Heat };

function Panel({ panel, found }) {
  const { x, y, w, h } = panel.gridPos;
  const box = { left: (x * width) / 24, top: y * ROW, width: (w * width) / 24 - 8, height: h * ROW - 8 };
  const place = { position: 'absolute', ...box };
  if (panel.type === 'row') return <div style={{ ...place, padding: 6, fontWeight: 500 }}>{panel.title}</div>;
  return (
    <div style={place}>
      <PanelChrome title={panel.title} width={box.width} height={box.height}>
        {(inner, high) => {
          const Kind = found.some((series) => series.length) && KINDS[panel.type];
          return Kind ? <Kind panel={panel} found={found} width={inner} height={high} /> : 'No data';
        }}
      </PanelChrome>
    </div>
  );
}

createRoot(document.getElementById('page')).render(
  <ThemeContext.Provider value={theme}>
    {dashboard.panels.map((panel, at) => <Panel key={at} panel={panel} found={answers[at]} />)}
  </ThemeContext.Provider>,
);
