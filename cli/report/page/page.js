// SPDX-License-Identifier: Apache-2.0
// Sorting, filtering, switching, and what a click shows. Texts of the files become text nodes and nothing else.
'use strict';
(() => {
  const all = (what, within = document) => [...within.querySelectorAll(what)];
  const data = JSON.parse(document.getElementById('data').textContent);
  const dialog = document.querySelector('dialog');

  // tag, what it has, what it holds
  function make(tag, has, ...holds) {
    const element = document.createElement(tag);
    Object.entries(has).forEach(([name, value]) => element.setAttribute(name, value));
    element.append(...holds);
    return element;
  }

  // A value of a row: a column is one text for all rows, a list of numbers, or a list of texts.
  function value(set, field, row) {
    const column = data.sets[set].fields[field];
    if (column === undefined) return undefined;
    if (Array.isArray(column)) return column[row] === null ? undefined : column[row];
    return data.texts[typeof column === 'number' ? column : column.t[row]];
  }

  const looks = {
    NOT_RUN: ['–', 'none'], QUALIFIED: ['Q', 'good'], QUALIFIED_FALLBACK: ['F', 'okay'], NUMERIC_FAIL: ['X', 'bad'],
    UNSUPPORTED: ['U', 'refused'], MISTRUSTED: ['M', 'doubt'], STALE: ['S', 'doubt'], NUMERICS_CHANGED: ['C', 'doubt'],
  };
  const look = (status) => looks[status] || ['?', 'none'];

  const grouped = (number) => number.toLocaleString('en-US', { maximumSignificantDigits: 6 });
  function bytes(number) {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let unit = 0;
    for (; number >= 1024 && unit < 4; unit++) number /= 1024;
    return `${grouped(number)} ${units[unit]}`;
  }
  const time = (ns) => (ns >= 1e9 ? `${grouped(ns / 1e9)} s` : ns >= 1e6 ? `${grouped(ns / 1e6)} ms` : `${grouped(ns / 1e3)} µs`);
  // The unit stands behind the value, so not in its name.
  const label = (field, x) => (typeof x === 'number' ? field.replace(/_(ns|s)$/, '') : field).replaceAll('_', ' ');
  function shown(field, x) {
    if (typeof x !== 'number') return x;
    if (/_ns$/.test(field)) return time(x);
    if (/_s$|^seconds$/.test(field)) return time(x * 1e9);
    if (/bytes|^(scratch|temporary)$|^(model|sim|compulsory|bound)_(read|written)|^cache_/.test(field)) return bytes(x);
    return Math.abs(x) >= 1e-3 || x === 0 ? grouped(x) : x.toExponential(2);
  }

  // In a shell: one word, whatever it holds.
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  function repro(set, row) {
    const given = value(set, 'repro', row);
    if (given || set !== 'cell') return given;
    const [problem, engine] = [value(set, 'problem', row), value(set, 'engine', row)];
    if (engine && engine !== 'tileproof') return `tileproof qualify ${quoted(value(set, 'model', row))} --engine ${quoted(engine)}`;
    return value(set, 'status', row) === 'UNSUPPORTED' ? `tileproof explain ${quoted(problem)}` : `tileproof run ${quoted(problem)} --verify`;
  }

  async function copy(text, button) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make('textarea', {});
      area.value = text;
      dialog.append(area);
      area.select();
      document.execCommand('copy');
      area.remove();
    }
    button.textContent = 'copied';
    setTimeout(() => { button.textContent = 'copy'; }, 2000);
  }

  function reproLine(text) {
    const button = make('button', { type: 'button' }, 'copy');
    button.addEventListener('click', () => copy(text, button));
    return [make('h3', {}, 'Repeat it'), make('div', { class: 'repro' }, make('code', {}, text), button)];
  }

  // Of a cell: status, the error beside its bound, each refusal.
  function cellParts(row) {
    const at = (field) => value('cell', field, row);
    const [letter, css] = look(at('status'));
    const parts = [make('p', {}, make('span', { class: `status ${css}` }, make('b', {}, letter), ` ${at('status')}`), ` ${at('purpose') || ''}`)];
    if (at('allowed') > 0 && at('error') !== undefined) {
      const share = at('error') / at('allowed');
      const fill = make('div', share > 1 ? { class: 'over' } : {});
      fill.style.width = `${Math.min(100, 100 * share)}%`;
      parts.push(make('h3', {}, 'Error beside its bound'), make('div', { class: 'bound' }, fill),
        make('p', {}, `${at('error').toExponential(2)} of ${at('allowed').toExponential(2)} allowed: ${(100 * share).toFixed(1)} %`));
    }
    if (at('loss') > 0) {
      parts.push(make('p', {}, `Quantising to ${at('cache')} lost up to ${(100 * at('loss')).toPrecision(3)} % of the greatest value of a row; the error is apart from it.`));
    }
    const reasons = [at('reason'), at('engine_reasons'), at('doubt')].filter(Boolean);
    if (reasons.length) {
      parts.push(make('h3', {}, 'Why'));
      reasons.forEach((text) => parts.push(make('ul', {}, ...text.split(/; |\n/).map((one) => make('li', {}, one)))));
    }
    return parts;
  }

  const told = ['error', 'allowed', 'reason', 'engine_reasons', 'doubt', 'repro', 'status', 'purpose', 'loss'];
  function rowParts(set, row) {
    const list = make('dl', {});
    Object.keys(data.sets[set].fields).forEach((field) => {
      const x = value(set, field, row);
      if (x === undefined || (set === 'cell' ? told.includes(field) : field === 'repro')) return;
      list.append(make('dt', {}, label(field, x)), make('dd', {}, String(shown(field, x))));
    });
    const line = repro(set, row);
    return [...(set === 'cell' ? cellParts(row) : []), ...(line ? reproLine(line) : []), make('h3', {}, 'All that is known of it'), list];
  }

  function show(set, first, count, chosen = first) {
    const inside = dialog.querySelector('.inside');
    const title = ['model', 'problem', 'row', 'name', 'class'].map((field) => value(set, field, chosen)).filter(Boolean);
    document.getElementById('what').textContent = title.slice(0, 2).join(': ') || set;
    inside.replaceChildren();
    if (count > 1) {
      const tabs = make('div', { class: 'tabs', role: 'group', 'aria-label': 'Cells' });
      for (let row = first; row < first + count; row++) {
        const [letter, css] = look(value(set, 'status', row));
        const tab = make('button', { type: 'button', class: css, 'aria-pressed': row === chosen }, make('b', {}, letter), ` ${value(set, 'purpose', row) || row - first + 1}`);
        tab.addEventListener('click', () => { show(set, first, count, row); dialog.querySelectorAll('.tabs button')[row - first].focus(); });
        tabs.append(tab);
      }
      inside.append(tabs);
    }
    inside.append(...rowParts(set, chosen));
    if (!dialog.open) dialog.showModal();
  }
  document.addEventListener('click', (event) => {
    const button = event.target.closest('[data-set]');
    if (button) show(button.dataset.set, Number(button.dataset.row), Number(button.dataset.count || 1));
    if (event.target === dialog || event.target.closest('.close')) dialog.close();
  });

  // Sorting: by the number of a field where it has one, else by its text. Fields without a value stay last.
  function key(cell) {
    if (!cell) return undefined;
    if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
    return cell.classList.contains('n') ? undefined : cell.textContent.toLowerCase() || undefined;
  }
  function sort(table, column, up) {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [key(row.cells[column]), row]);
    const order = (a, b) => (a === b ? 0 : a === undefined ? 1 : b === undefined ? -1 : (a < b ? -1 : 1) * (up ? 1 : -1));
    rows.sort((a, b) => order(a[0], b[0]));
    body.append(...rows.map((row) => row[1]));
  }
  all('table:not(.heatmap)').forEach((table) => [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const button = make('button', { type: 'button' }, ...cell.childNodes);
    cell.append(button);
    button.addEventListener('click', () => {
      const up = cell.getAttribute('aria-sort') !== 'ascending';
      all('[aria-sort]', table).forEach((other) => other.removeAttribute('aria-sort'));
      cell.setAttribute('aria-sort', up ? 'ascending' : 'descending');
      sort(table, column, up);
    });
  }));

  // Filtering: every word must stand in the row; the status is one of its letters.
  function filter(id) {
    const words = document.querySelector(`[data-filter="${id}"]`).value.toLowerCase().split(/\s+/).filter(Boolean);
    const status = document.querySelector(`[data-status="${id}"]`)?.value || '';
    const rows = [...document.getElementById(id).tBodies[0].rows];
    let count = 0;
    rows.forEach((row) => {
      row.words ??= row.textContent.toLowerCase();
      row.hidden = !words.every((word) => row.words.includes(word)) || !(row.dataset.letters || '').includes(status);
      count += !row.hidden;
    });
    document.querySelector(`[data-shown="${id}"]`).textContent = count < rows.length ? `${count} of ${rows.length} rows` : '';
  }
  all('[data-filter]').forEach((input) => input.addEventListener('input', () => filter(input.dataset.filter)));
  all('[data-status]').forEach((select) => select.addEventListener('change', () => filter(select.dataset.status)));

  // Heat maps: one at a time, one metric at a time.
  const heat = document.getElementById('heat');
  function switchHeat() {
    const chosen = heat.querySelector('[data-maps]').value;
    const radios = all('[name=metric]', heat);
    all('[data-map]', heat).forEach((map) => { map.hidden = map.dataset.map !== chosen; });
    radios.forEach((radio) => { radio.disabled = !heat.querySelector(`[data-map="${chosen}"] .${radio.value}`); });
    if (!radios.some((radio) => radio.checked && !radio.disabled)) (radios.find((radio) => !radio.disabled) || radios[0]).checked = true;
    heat.dataset.metric = radios.find((radio) => radio.checked).value;
  }
  if (heat) {
    heat.addEventListener('change', switchHeat);
    switchHeat();
  }

  // Arrows walk through the buttons of a table; / goes to the first filter.
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  document.addEventListener('keydown', (event) => {
    if (event.key === '/' && !dialog.open && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) {
      event.preventDefault();
      document.querySelector('[data-filter]')?.focus();
    }
    const step = steps[event.key], field = event.target.closest?.('tbody td');
    if (!step || !field || event.target.tagName !== 'BUTTON') return;
    const rows = [...field.parentElement.parentElement.rows].filter((row) => !row.hidden);
    let [column, line] = [field.cellIndex, rows.indexOf(field.parentElement)], next;
    do {
      column += step[0];
      line += step[1];
      next = rows[line]?.cells[column];
    } while (next && !next.querySelector('button'));
    if (!next) return;
    event.preventDefault();
    next.querySelector('button').focus();
  });

  all('.tools').forEach((tools) => { tools.hidden = false; });
  all('main > section[id]').forEach((section) => {
    const title = section.dataset.nav || section.querySelector('h2')?.textContent;
    if (title) document.querySelector('nav').append(make('a', { href: `#${section.id}` }, title));
  });
})();
