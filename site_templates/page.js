// The page is whole without this script. It makes a chart interactive at the first pointer, touch or focus on it:
// loading the chart library earlier would cost every reader its 300 kB.
(function () {
  "use strict";
  var root = document.currentScript.dataset.root;
  var library = null;

  function load() {
    library = library || new Promise(function (done, failed) {
      var script = document.createElement("script");
      script.src = root + "assets/vega.js";
      script.onload = function () { done(window.vegaEmbed); };
      script.onerror = failed;
      document.head.append(script);
    });
    return library;
  }

  function bring(figure) {
    var drawing = figure.querySelector(".drawing");
    var spec = JSON.parse(figure.querySelector("script").textContent);
    load().then(function (embed) {
      var live = document.createElement("div");
      live.className = "live";
      drawing.append(live);
      // svg: its colours follow the page's scheme; a canvas would keep those of the moment it was drawn.
      return embed(live, spec, { actions: false, renderer: "svg" }).then(function () {
        drawing.classList.add("interactive");
      });
    }).catch(function () { /* the static drawing stays */ });
  }

  document.querySelectorAll("figure.chart").forEach(function (figure) {
    var drawing = figure.querySelector(".drawing");
    var events = ["pointerenter", "touchstart", "focus"];
    function once() {
      events.forEach(function (name) { drawing.removeEventListener(name, once); });
      bring(figure);
    }
    events.forEach(function (name) { drawing.addEventListener(name, once, { passive: true }); });
  });
})();
