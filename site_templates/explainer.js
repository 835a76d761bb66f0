// The figures of explainers. Without this script they stand still and are complete: every arrow, every step, a table.
(function () {
  "use strict";
  var still = matchMedia("(prefers-reduced-motion: reduce)");
  var STEP_MS = 1800;

  // Bytes that travel: all routes of a figure take their steps together; the shorter one waits at its end.
  document.querySelectorAll("figure.paths").forEach(function (figure) {
    var routes = Array.from(figure.querySelectorAll(".route")).map(function (route) {
      return {
        node: route, moves: route.querySelectorAll(".move"), badges: route.querySelectorAll(".badge"), texts: route.querySelectorAll(".moves li"),
        packet: route.querySelector(".packet"), flight: null,
      };
    });
    var last = Math.max.apply(null, routes.map(function (route) { return route.moves.length; }));
    var said = figure.querySelector(".at"), aloud = figure.querySelector(".aloud"), play = figure.querySelector('[data-go="play"]');
    var back = figure.querySelector('[data-go="back"]'), next = figure.querySelector('[data-go="next"]');
    var step = 0, playing = false, timer = null;  // step 0: nothing has moved yet, and all of it is shown

    function place(move, name) { return "translate(" + move.dataset[name].replace(",", "px,") + "px)"; }

    function show(moving) {
      figure.classList.toggle("walking", step > 0);
      routes.forEach(function (route) {
        var at = Math.min(step, route.moves.length) - 1, move = route.moves[at];
        [route.moves, route.badges, route.texts].forEach(function (nodes) {
          nodes.forEach(function (node, number) {
            node.classList.toggle("now", number === at && step <= route.moves.length);
            node.classList.toggle("done", number < at || (number === at && step > route.moves.length));
          });
        });
        route.node.classList.toggle("arrived", step > route.moves.length);
        if (route.flight) route.flight.cancel();
        route.flight = null;
        if (!move) return;
        route.packet.style.transform = place(move, "to");
        if (moving && step <= route.moves.length && !still.matches) {
          route.flight = route.packet.animate([{ transform: place(move, "from") }, { transform: place(move, "to") }], { duration: STEP_MS * 0.7, easing: "ease-in-out" });
        }
      });
      said.textContent = step ? "Step " + step + " of " + last : "";
      // Not `disabled`: a button that has the focus would lose it.
      back.setAttribute("aria-disabled", step === 0);
      next.setAttribute("aria-disabled", step === last);
      play.textContent = playing ? "Pause" : step === last ? "Play again" : "Play";
    }
    function tick() {
      if (step === last) { playing = false; show(false); return; }
      step += 1;
      show(true);
      timer = setTimeout(tick, STEP_MS);
    }
    function pause() {
      playing = false;
      clearTimeout(timer);
      routes.forEach(function (route) { if (route.flight && route.flight.playState === "running") route.flight.pause(); });
    }
    play.addEventListener("click", function () {
      if (playing) { pause(); play.textContent = "Play"; return; }
      playing = true;
      var flying = routes.filter(function (route) { return route.flight && route.flight.playState === "paused"; });
      if (flying.length) {
        flying.forEach(function (route) { route.flight.play(); });
        timer = setTimeout(tick, STEP_MS);
        play.textContent = "Pause";
      } else {
        if (step === last) step = 0;
        tick();
      }
    });
    function go(by) {
      if (step + by < 0 || step + by > last) return;
      pause();
      step += by;
      show(by > 0);
      aloud.textContent = said.textContent + ". " + routes.map(function (route) {
        var text = route.texts[Math.min(step, route.moves.length) - 1];
        return route.node.querySelector("h3").textContent + ": " + (step > route.moves.length ? "arrived." : text ? text.textContent : "not begun.");
      }).join(" ");
    }
    back.addEventListener("click", function () { go(-1); });
    next.addEventListener("click", function () { go(1); });
    document.addEventListener("visibilitychange", function () { if (document.hidden && playing) { pause(); play.textContent = "Play"; } });
    show(false);
  });

  // Controls: the formulas are those of explainer.toml, translated when the page was built.
  function rough(value) {
    return Number(value.toPrecision(2)).toLocaleString("en-US", { maximumSignificantDigits: 2 });
  }
  document.querySelectorAll("figure.calculator").forEach(function (figure) {
    var made = window.calculators[figure.id], inputs = figure.querySelectorAll("[data-input]");
    function show() {
      var v = {};
      inputs.forEach(function (input) {
        var chosen = made.inputs[input.dataset.input][input.value];
        v[input.dataset.input] = chosen[0];
        input.parentNode.querySelector(".chosen").textContent = chosen[1];
        input.setAttribute("aria-valuetext", chosen[1]);
      });
      made.steps(v);
      var values = made.bars.map(function (bar) { return bar(v); }), most = Math.max.apply(null, values) || 1;
      figure.querySelectorAll(".bars dd").forEach(function (row, at) {
        row.querySelector(".bar").style.width = (100 * values[at] / most).toFixed(2) + "%";
        row.querySelector("b").textContent = rough(values[at]);
      });
      var text = made.says.filter(function (saying) { return saying[0](v); })[0][1], says = figure.querySelector(".says");
      if (says.textContent !== text) says.textContent = text;
    }
    figure.addEventListener("input", show);
    show();
  });
})();
