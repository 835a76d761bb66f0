// Every page is whole without this script. With it, charts answer: they load their library at the first pointer, touch,
// focus or control, because earlier it would cost every reader 300 kB.
(function () {
  "use strict";
  var root = document.currentScript.dataset.root;
  var loading = {};

  function load(source) {
    // A plain script and not fetch(): that one is refused where a page was opened from disk.
    loading[source] = loading[source] || new Promise(function (done, failed) {
      var script = document.createElement("script");
      script.src = source;
      script.onload = done;
      script.onerror = function (event) { delete loading[source]; failed(event); };
      document.head.append(script);
    });
    return loading[source];
  }

  function make(tag, name, parent) {
    var node = document.createElement(tag);
    node.className = name;
    if (parent) parent.append(node);
    return node;
  }

  function written(value) {
    if (Number.isInteger(value)) return value.toLocaleString("en-US");
    return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(4)));
  }

  function nearest(values, x) {
    var best = 0;
    values.forEach(function (value, at) { if (Math.abs(value - x) < Math.abs(values[best] - x)) best = at; });
    return best;
  }

  // One live chart: its controls are the state, draw() shows it, at(x) puts the cursor there.
  function liven(figure, data, embed) {
    var drawing = figure.querySelector(".drawing");
    var host = make("div", "live", drawing);
    var canvas = make("div", "canvas", host);
    var names = make("div", "names", host), rule = make("div", "rule", host), box = make("div", "box", host);
    var whereAt = figure.querySelector(".at");
    var zoom = null, cursor = null, view = null, pressed = null;

    function choice(name) {
      var control = figure.querySelector('[data-control="' + name + '"]');
      return control ? control.value : "";
    }
    function axis() { return choice("x") || data.axes[0][0]; }
    function armOf(role) { return data.arms.filter(function (arm) { return arm[0] === role; })[0]; }
    function title() { return data.axes.filter(function (one) { return one[0] === axis(); })[0][1]; }
    function column(line, name) {
      return typeof line[name] === "number" ? line.step.map(function (step) { return step * line[name]; }) : line[name];
    }
    // Values were rounded for the page, so an end may lie a hair outside.
    function inside(x, range) {
      var hair = (range[1] - range[0]) / 1000;
      return x >= range[0] - hair && x <= range[1] + hair;
    }
    function visible() {
      return data.lines.filter(function (line) {
        var check = figure.querySelector('input[data-arm="' + line.arm + '"]');
        return !check || check.checked;
      }).map(function (line) {
        var smooth = line.line === "mean" && line[choice("smooth")];
        return { of: line, x: column(line, axis()), y: smooth || line.y };
      });
    }
    function means() { return visible().filter(function (line) { return line.of.line === "mean"; }); }

    function xRange(lines) {
      if (zoom) return zoom;
      if (axis() === data.axes[0][0]) return data.x;
      var all = [].concat.apply([], lines.map(function (line) { return line.x; }));
      return [Math.min.apply(null, all), Math.max.apply(null, all)];
    }
    // The same room for names as in charts.py, on the side where the lines end.
    function yRange(points, count, log) {
      var bend = log ? Math.log : Number, back = log ? Math.exp : Number;
      var low = Infinity, high = -Infinity;
      points.forEach(function (point) { low = Math.min(low, bend(point.y)); high = Math.max(high, bend(point.y)); });
      if (low > high) return data.range;
      var span = high - low || 1, part = 16 / data.spec.height * (count + 1), room = span * part / (1 - part);
      return data.falls ? [back(low - room), back(high + 0.05 * span)] : [back(low - 0.05 * span), back(high + room)];
    }
    // Marks know their step; on another axis they stand where their arm's mean line was at that step.
    function marks() {
      return data.marks.map(function (mark) {
        if (axis() === data.axes[0][0]) return mark;
        var line = means().filter(function (one) { return !mark.arm || one.of.arm === mark.arm; })[0];
        return line ? Object.assign({}, mark, { x: line.x[nearest(column(line.of, data.axes[0][0]), mark.x)] }) : null;
      }).filter(Boolean);
    }

    function draw() {
      var lines = visible(), log = choice("y") === "log", range = xRange(lines), points = [];
      lines.forEach(function (line) {
        line.x.forEach(function (x, order) {
          if (!log || line.y[order] > 0) points.push({ arm: line.of.arm, line: line.of.line, seed: line.of.seed, x: x, y: line.y[order], order: order });
        });
      });
      var seen = points.filter(function (point) { return inside(point.x, range); });
      var asMade = !zoom && !log && axis() === data.axes[0][0] && lines.length === data.lines.length;
      var spec = JSON.parse(JSON.stringify(data.spec));
      spec.datasets = { points: points, marks: marks(), names: [] };
      spec.width = drawing.clientWidth;
      spec.autosize = { type: "fit-x", contains: "padding" };
      spec.layer.forEach(function (layer) {
        var x = layer.encoding.x, y = layer.encoding.y;
        layer.mark.clip = Boolean(zoom) && layer.mark.type !== "text";
        if (x) { x.scale.domain = range; x.title = title(); }
        if (y && y.scale) {
          y.scale.domain = asMade ? data.range : yRange(seen, means().length, log);
          y.scale.type = log ? "log" : "linear";
        }
      });
      figure.querySelector('[data-control="reset"]').disabled = !zoom;
      // svg: its colours follow the page's scheme; a canvas would keep those of the moment it was drawn.
      return embed(canvas, spec, { actions: false, renderer: "svg", tooltip: false }).then(function (result) {
        view = result.view;
        canvas.querySelectorAll("svg").forEach(function (svg) { svg.setAttribute("aria-hidden", "true"); });
        drawing.classList.add("interactive");
        nameLines(range);
        at(cursor);
      });
    }

    function corner() {
      var origin = view.origin(), padding = view.padding();
      return [origin[0] + padding.left, origin[1] + padding.top];
    }
    function place(x, y) {
      var origin = corner();
      return [origin[0] + view.scale("x")(x), origin[1] + view.scale("y")(y)];
    }
    // Each arm's name at its line's end; equal ends share a name, near ones are moved apart.
    function nameLines(range) {
      names.textContent = "";
      var sign = data.falls ? 1 : -1, placed = [];
      means().map(function (line) {
        var last = line.x.length - 1;
        while (last >= 0 && !inside(line.x[last], range)) last -= 1;
        return last < 0 ? null : { arm: line.of.arm, at: place(line.x[last], line.y[last]) };
      }).filter(Boolean).sort(function (a, b) { return sign * (a.at[1] - b.at[1]); }).forEach(function (end) {
        var same = placed.filter(function (other) { return Math.abs(other.end[0] - end.at[0]) < 1 && Math.abs(other.end[1] - end.at[1]) < 0.5; })[0];
        var arm = armOf(end.arm), label = arm[1];
        if (same && (same.node.textContent.length + label.length + 3) * 7.5 < host.clientWidth - 60) { same.node.textContent += " = " + label; same.settle(); return; }
        var top = end.at[1] + sign * 11;
        placed.forEach(function (other) {
          if (Math.abs(other.end[0] - end.at[0]) < 110 && sign * (top - other.top) < 16) top = other.top + sign * 16;
        });
        var node = make("span", "name arm-" + arm[2], names);
        node.textContent = label;
        // Before the line's end, else beyond it, and in any case inside the chart.
        function settle() {
          var before = end.at[0] - 4 - node.offsetWidth, left = before > corner()[0] ? before : end.at[0] + 6;
          node.style.left = Math.max(0, Math.min(left, host.clientWidth - node.offsetWidth)) + "px";
        }
        settle();
        node.style.top = top + "px";
        placed.push({ end: end.at, top: top, node: node, settle: settle });
      });
    }

    function positions() {
      var range = xRange(visible()), all = [].concat.apply([], means().map(function (line) { return line.x; }));
      return Array.from(new Set(all)).filter(function (x) { return inside(x, range); }).sort(function (a, b) { return a - b; });
    }
    function say(line, value) {
      figure.querySelector('.value[data-arm="' + line.of.arm + '"]').textContent = written(value);
    }
    function at(x) {
      var stops = positions(), text = [];
      rule.hidden = x === null || !stops.length;
      host.querySelectorAll(".dot").forEach(function (dot) { dot.remove(); });
      figure.querySelectorAll(".value[data-arm]").forEach(function (node) { node.textContent = "–"; });
      if (rule.hidden) means().forEach(function (line) { say(line, line.y[line.y.length - 1]); });
      drawing.setAttribute("aria-valuemax", Math.max(0, stops.length - 1));
      drawing.setAttribute("aria-valuenow", rule.hidden ? Math.max(0, stops.length - 1) : nearest(stops, x));
      var endText = data.end + (choice("smooth") ? ", smoothed" : "");
      drawing.setAttribute("aria-valuetext", endText);
      if (rule.hidden) { cursor = null; whereAt.textContent = endText; return; }
      cursor = stops[nearest(stops, x)];
      whereAt.textContent = title() + ": " + written(cursor);
      means().filter(function (line) { return inside(cursor, [line.x[0], line.x[line.x.length - 1]]); }).forEach(function (line) {
        var index = nearest(line.x, cursor), value = line.y[index], spot = place(line.x[index], value);
        var arm = armOf(line.of.arm);
        say(line, value);
        text.push(arm[1] + " " + written(value));
        var dot = make("span", "dot arm-" + arm[2], host);
        dot.style.left = spot[0] + "px";
        dot.style.top = spot[1] + "px";
      });
      rule.style.left = place(cursor, 1)[0] + "px";
      rule.style.top = corner()[1] + "px";
      rule.style.height = view.height() + "px";
      drawing.setAttribute("aria-valuetext", whereAt.textContent + "; " + text.join(", "));
    }

    function zoomTo(range) {
      var some = range && means().some(function (line) { return line.x.filter(function (x) { return inside(x, range); }).length; });
      if (range && !some) return;
      zoom = range;
      draw();
    }
    function closer() {
      // In pixels, so that half of a logarithmic axis is half of it to the eye.
      var x = view.scale("x"), width = view.width(), middle = cursor === null ? width / 2 : x(cursor);
      zoomTo([x.invert(Math.max(0, middle - width / 4)), x.invert(Math.min(width, middle + width / 4))]);
    }

    function under(event) {
      var x = event.clientX - host.getBoundingClientRect().left - corner()[0];
      return view.scale("x").invert(Math.max(0, Math.min(view.width(), x)));
    }
    function move(event) {
      if (!view) return;
      at(under(event));
      if (pressed === null) return;
      var here = event.clientX - host.getBoundingClientRect().left;
      box.hidden = Math.abs(here - pressed.px) < 8;
      box.style.left = Math.min(here, pressed.px) + "px";
      box.style.width = Math.abs(here - pressed.px) + "px";
    }
    box.hidden = true;
    drawing.addEventListener("pointermove", move);
    drawing.addEventListener("pointerdown", function (event) {
      if (!view) return;
      at(under(event));
      if (event.pointerType === "mouse" && event.button === 0) {
        pressed = { px: event.clientX - host.getBoundingClientRect().left, x: under(event) };
        drawing.setPointerCapture(event.pointerId);
        event.preventDefault();
        drawing.focus({ preventScroll: true });
      }
    });
    drawing.addEventListener("pointerup", function (event) {
      if (pressed && !box.hidden) zoomTo([pressed.x, under(event)].sort(function (a, b) { return a - b; }));
      pressed = null;
      box.hidden = true;
    });
    drawing.addEventListener("pointerleave", function (event) { if (view && event.pointerType === "mouse" && !pressed && document.activeElement !== drawing) at(null); });
    drawing.addEventListener("dblclick", function () { zoomTo(null); });
    drawing.addEventListener("keydown", function (event) {
      if (!view || event.ctrlKey || event.metaKey || event.altKey) return;
      var stops = positions(), now = cursor === null ? stops.length - 1 : nearest(stops, cursor);
      var moves = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - 10, PageUp: now + 10, Home: 0, End: stops.length - 1 };
      if (event.key in moves) at(stops[Math.max(0, Math.min(stops.length - 1, cursor === null ? now : moves[event.key]))]);
      else if (event.key === "+") closer();
      else if (event.key === "-" || event.key === "Escape") zoomTo(null);
      else return;
      event.preventDefault();
    });
    figure.addEventListener("change", function (event) {
      if (event.target.dataset.control === "x") { zoom = null; cursor = null; }
      draw();
    });
    figure.querySelector('[data-control="closer"]').addEventListener("click", closer);
    figure.querySelector('[data-control="reset"]').addEventListener("click", function () { zoomTo(null); });

    drawing.setAttribute("aria-valuemin", 0);
    drawing.setAttribute("aria-valuenow", 0);
    drawing.setAttribute("role", "slider");
    var width = drawing.clientWidth;
    new ResizeObserver(function () {  // a chart in a closed <details> has no width until it is opened
      if (Math.abs(drawing.clientWidth - width) < 2) return;
      width = drawing.clientWidth;
      if (width) draw();
    }).observe(drawing);
    function stand() {
      var stops = positions();
      if (view && cursor === null && document.activeElement === drawing && stops.length) at(stops[stops.length - 1]);
    }
    drawing.addEventListener("focus", stand);
    return draw().then(stand);
  }

  document.querySelectorAll("figure.chart[data-live]").forEach(function (figure) {
    var drawing = figure.querySelector(".drawing");
    drawing.tabIndex = 0;
    drawing.setAttribute("aria-label", drawing.getAttribute("aria-label") + ": arrow keys walk along the lines");
    var started = null;
    function start(event) {
      started = started || Promise.all([load(root + "assets/vega.js"), load(figure.dataset.live)]).then(function () {
        return liven(figure, window.lessonCharts[figure.id], window.vegaEmbed);
      }).catch(function () { started = null; /* the static drawing stays, and the next touch tries again */ });
      // A press on a button before there was anything to press is done once there is.
      var button = event.type === "click" && event.target.closest("button[data-control]");
      if (button && !drawing.classList.contains("interactive")) {
        started.then(function () { if (drawing.classList.contains("interactive")) button.click(); });
      }
    }
    ["pointerenter", "touchstart", "focusin", "click"].forEach(function (name) { figure.addEventListener(name, start, { passive: true }); });
  });

  // Samples by training step: one step at a time, chosen with a slider.
  document.querySelectorAll(".samples").forEach(function (samples) {
    var steps = samples.querySelectorAll("[data-step]");
    if (steps.length < 2) return;
    var label = make("label", "slider"), range = document.createElement("input"), output = make("output", "");
    range.type = "range";
    range.max = steps.length - 1;
    range.value = range.max;
    function choose() {
      steps.forEach(function (step, at) { step.hidden = at !== Number(range.value); });
      output.textContent = "step " + Number(steps[range.value].dataset.step).toLocaleString("en-US");
      range.setAttribute("aria-valuetext", output.textContent);
      reach();
    }
    range.addEventListener("input", choose);
    label.append("After which training step? ", range, output);
    samples.prepend(label);
    choose();
  });

  document.querySelectorAll("pre.copy").forEach(function (pre) {
    var button = make("button", "copy-button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", function () {
      var text = pre.querySelector("code").textContent;
      // A page from disk has no clipboard of its own: there the text is selected, and the old command copies it.
      var copied = navigator.clipboard ? navigator.clipboard.writeText(text) : Promise.reject();
      copied.catch(function () {
        getSelection().selectAllChildren(pre.querySelector("code"));
        if (!document.execCommand("copy")) throw new Error("refused");
      }).then(function () { button.textContent = "Copied"; }, function () { button.textContent = "Press Ctrl+C"; });
    });
    pre.before(button);
  });

  // Terms: a finger's first touch shows the meaning, the second follows the link. Escape puts a meaning away.
  function close(term, name) { if (term) term.classList.remove(name || "open"); }
  document.addEventListener("click", function (event) {
    var term = event.target.closest(".term"), open = document.querySelector(".term.open");
    if (open !== term) close(open);
    if (!term || term === open || event.pointerType !== "touch") return;
    event.preventDefault();
    term.classList.add("open");
  });
  document.addEventListener("keydown", function (event) {
    if (event.key !== "Escape") return;
    close(document.querySelector(".term.open"));
    document.querySelectorAll(".term:hover, .term:focus, .term:has(+ .meaning:hover)").forEach(function (term) {
      term.classList.add("closed");
      ["pointerenter", "pointerleave", "blur"].forEach(function (name) { term.addEventListener(name, function () { close(term, "closed"); }, { once: true }); });
    });
  });

  // Ctrl+K leads to the search. Not "/": a key alone is pressed by mistake, and by those who speak to their computer.
  document.addEventListener("keydown", function (event) {
    if (event.key !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    event.preventDefault();
    var box = document.getElementById("words");
    if (box) box.focus(); else location.href = document.querySelector(".to-search").href;
  });

  // What can be scrolled can be scrolled by keyboard.
  function reach() {
    var boxes = Array.from(document.querySelectorAll(".table:not(.tall), pre, .math, .sample"));
    // All are measured before any is changed: a change between two measurements would lay out the page again.
    var scrolls = boxes.map(function (box) { return box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight; });
    boxes.forEach(function (box, at) {
      if (scrolls[at]) box.tabIndex = 0; else box.removeAttribute("tabindex");
    });
  }
  addEventListener("load", reach);  // not at once: it would make the browser lay out the whole page before it shows any of it
  addEventListener("resize", reach);
  document.querySelectorAll("details").forEach(function (details) { details.addEventListener("toggle", reach); });

  var scheme = document.querySelector(".scheme");
  function isDark() {
    return (document.documentElement.dataset.scheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  }
  function label() { scheme.textContent = isDark() ? "Light" : "Dark"; }
  scheme.addEventListener("click", function () {
    document.documentElement.dataset.scheme = isDark() ? "light" : "dark";
    try { localStorage.setItem("scheme", document.documentElement.dataset.scheme); } catch (refused) { /* it lasts for this page */ }
    label();
  });
  label();
})();
